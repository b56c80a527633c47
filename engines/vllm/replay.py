"""Replays completions of given lengths with vLLM in this process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from engines.vllm import hooks
from engines.vllm.cpu import is_cpu_platform, keep_threads, model_runner, reload_weights
from engines.vllm.settings import engine_settings
from node.hardware import importing


class VllmReplay:
    """An `LLM` with its engine in this process, like TRL's colocated one."""

    def __init__(self, llm: Any, settings: Mapping[str, Any]) -> None:
        self._llm, self._settings = llm, settings
        self.sleeps = bool(settings["engine"].get("enable_sleep_mode"))

    def generate(self, prompts: Sequence[list[int]], lengths: Sequence[int], greedy: bool = False) -> list[list[int]]:
        from vllm import SamplingParams

        options = {"temperature": 0.0} if greedy else {key: self._settings[key] for key in ("temperature", "top_p")}
        sampling = [SamplingParams(**options, max_tokens=n, ignore_eos=True, detokenize=False) for n in lengths]
        requests = [{"prompt_token_ids": ids} for ids in prompts]
        results = self._llm.generate(requests, sampling, use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results]

    def update(self, weights: Iterable[tuple[str, Any]]) -> None:
        if is_cpu_platform():
            reload_weights(self._llm.llm_engine, weights)
            return
        # As TRL 1.16 in one process (trl/generation/vllm_generation.py, sync_weights).
        hooks.MODEL.get(model_runner(self._llm.llm_engine)).load_weights(weights)
        self._llm.reset_prefix_cache()

    def sleep(self) -> None:
        self._llm.sleep(level=2)

    def wake(self) -> None:
        self._llm.wake_up()

    def settings(self) -> dict[str, Any]:
        return engine_settings(self._llm, self._settings["dtype"])

    def close(self) -> None:
        hooks.CORE.get(self._llm.llm_engine).shutdown()


def build(model: Path, policy: Any, settings: Mapping[str, Any], threads: int, log: Path) -> VllmReplay:
    """Build the engine; `UserError` for settings that vLLM rejects."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    with importing():
        from vllm import LLM

    shards = int(settings.get("tensor_parallel", 1))
    try:
        with keep_threads(threads):
            llm = LLM(
                model=str(model),
                dtype=settings["dtype"],
                seed=settings["seed"],
                max_model_len=settings["max_prompt_length"] + settings["max_response_length"],
                **({"tensor_parallel_size": shards} if shards > 1 else {}),
                **settings["engine"],
            )
    except (TypeError, ValueError) as error:
        raise UserError(f"vLLM rejects the settings (options.engine): {str(error).splitlines()[0]}") from error
    return VllmReplay(llm, settings)
