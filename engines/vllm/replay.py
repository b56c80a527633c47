"""vLLM alone, in this process, on completions of given lengths."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from engines.vllm.colocate import check_engine
from engines.vllm.cpu import is_cpu_platform, reload_weights, threads_kept

_OF_THE_WORKLOAD = ("model", "dtype", "seed", "max_model_len", "tensor_parallel_size", "pipeline_parallel_size")


class VllmReplay:
    """An `LLM` whose engine lives in this process, as TRL's colocated one does."""

    def __init__(self, llm: Any, settings: Mapping[str, Any]) -> None:
        self._llm, self._settings = llm, settings
        self.sleeps = bool(settings["engine"].get("enable_sleep_mode"))

    def generate(self, prompts: Sequence[list[int]], lengths: Sequence[int], greedy: bool = False) -> list[list[int]]:
        from vllm import SamplingParams

        words = {"temperature": 0.0} if greedy else {key: self._settings[key] for key in ("temperature", "top_p")}
        sampling = [SamplingParams(**words, max_tokens=length, ignore_eos=True, detokenize=False) for length in lengths]
        asked = [{"prompt_token_ids": ids} for ids in prompts]
        made = self._llm.generate(asked, sampling, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in made]

    def update(self, weights: Iterable[tuple[str, Any]]) -> None:
        if is_cpu_platform():
            reload_weights(self._llm, weights)
            return
        # As TRL 1.16 does in one process (trl/generation/vllm_generation.py, sync_weights).
        self._llm.llm_engine.model_executor.driver_worker.model_runner.model.load_weights(weights)
        self._llm.reset_prefix_cache()

    def sleep(self) -> None:
        self._llm.sleep(level=2)

    def wake(self) -> None:
        self._llm.wake_up()

    def held(self) -> dict[str, Any]:
        return check_engine(self._llm, self._settings["dtype"])

    def close(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()


def build(model: Path, policy: Any, settings: Mapping[str, Any], threads: int) -> VllmReplay:
    """`UserError` for a setting of vLLM that the workload has a word for, and with vLLM's own words for a wrong one."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM

    for name in settings["engine"]:
        if name in _OF_THE_WORKLOAD:
            raise UserError(f"options.engine.{name} of a replay follows from the workload; take it out")
    try:
        with threads_kept(threads):
            llm = LLM(
                model=str(model),
                dtype=settings["dtype"],
                seed=settings["seed"],
                max_model_len=settings["max_prompt_length"] + settings["max_response_length"],
                **settings["engine"],
            )
    except (TypeError, ValueError) as error:
        raise UserError(f"vLLM refuses the settings (options.engine): {str(error).splitlines()[0]}") from error
    return VllmReplay(llm, settings)
