"""vLLM alone, in this process, on completions of given lengths."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.errors import UserError
from engines.vllm.colocate import engine_settings
from engines.vllm.cpu import is_cpu_platform, keep_threads, reload_weights
from node.hardware import importing

STARTS_ITS_SHARDS = False
"""Each process of a tensor parallel engine builds it and asks it the same, as TRL and verl have it."""
_OF_THE_WORKLOAD = ("model", "dtype", "seed", "max_model_len", "tensor_parallel_size", "pipeline_parallel_size")


class VllmReplay:
    """An `LLM` whose engine lives in this process, as TRL's colocated one does."""

    def __init__(self, llm: Any, settings: Mapping[str, Any], warm_up_s: list[float]) -> None:
        self._llm, self._settings, self._warm_up_s = llm, settings, warm_up_s
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
            reload_weights(self._llm.llm_engine, weights)
            return
        # As TRL 1.16 does in one process (trl/generation/vllm_generation.py, sync_weights).
        self._llm.llm_engine.model_executor.driver_worker.model_runner.model.load_weights(weights)
        self._llm.reset_prefix_cache()

    def sleep(self) -> None:
        self._llm.sleep(level=2)

    def wake(self) -> None:
        self._llm.wake_up()

    def settings(self) -> dict[str, Any]:
        once = {"warm_up_s": sum(self._warm_up_s)} if self._warm_up_s else {}
        return {**engine_settings(self._llm.llm_engine, self._settings["dtype"]), **once}

    def close(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()


def build(model: Path, policy: Any, settings: Mapping[str, Any], threads: int) -> VllmReplay:
    """`UserError` for a setting of vLLM that the workload has a word for, and with vLLM's own words for a wrong one."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    with importing():
        from vllm import LLM

    for name in settings["engine"]:
        if name in _OF_THE_WORKLOAD:
            raise UserError(f"options.engine.{name} of a replay follows from its other words; take it out")
    shards = int(settings.get("tensor_parallel", 1))
    split = {"tensor_parallel_size": shards, "distributed_executor_backend": "external_launcher"} if shards > 1 else {}
    try:
        with keep_threads(threads), _warm_up_timed() as warm_up_s:
            llm = LLM(
                model=str(model),
                dtype=settings["dtype"],
                seed=settings["seed"],
                max_model_len=settings["max_prompt_length"] + settings["max_response_length"],
                **split,
                **settings["engine"],
            )
    except (TypeError, ValueError) as error:
        raise UserError(f"vLLM refuses the settings (options.engine): {str(error).splitlines()[0]}") from error
    return VllmReplay(llm, settings, warm_up_s)


@contextmanager
def _warm_up_timed() -> Iterator[list[float]]:
    """The seconds that this worker compiles, warms up and captures graphs; on a CPU there are none to capture."""
    if is_cpu_platform():
        yield []
        return
    from vllm.v1.worker.gpu_worker import Worker

    original, taken = Worker.compile_or_warm_up_model, []

    def timed(worker: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(worker)
        finally:
            taken.append(time.perf_counter() - began)

    Worker.compile_or_warm_up_model = timed
    try:
        yield taken
    finally:
        Worker.compile_or_warm_up_model = original
