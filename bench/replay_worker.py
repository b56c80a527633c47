"""Runs in a stack: a replay, or the engine's own offline benchmark, one repetition each time it is asked.

    python -m bench.replay_worker ours|plain|released ATTEMPT GO TOLD

`ours` is the replay's driver as a job runs it. `plain` builds the engine as its own documentation does, with the same
settings, and times it with the code of the engine's own benchmark: `vllm.benchmarks.throughput`,
`sglang.benchmark.offline_throughput`; transformers has none in its wheel, so a loop over `generate`. `released` is
`plain` with vLLM's core in a process of its own, which is its default and no trainer's. GO and TOLD are open file
descriptors: a byte from the one begins a repetition, a JSON line on the other tells its seconds.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.gate import Gate, cpu_s
from node.attempt import begin, exit_code
from node.exit_codes import StopRequest
from node.ranks import die_with_parent
from trainers.replay import driver

Prepared = Callable[[Sequence[list[int]], Sequence[int]], Callable[[], float]]
"""Of prompts and lengths, what writes one completion for each and returns its seconds as the benchmark tells them."""


def ours(gate: Gate) -> int:
    """The driver; of each step all but the weight sync, which a benchmark does not have."""
    began: dict[str, float] = {}
    rollout, write = driver._rollout, driver.append_json_line

    class Gated(driver.StepClock):
        def begin_step(self) -> None:
            gate.wait()
            began.update(cpu=cpu_s(), wall=time.perf_counter())
            super().begin_step()

    def watched(engine: Any, *given: Any, **more: Any) -> Any:
        update, whole = engine.update, _engines_own(engine)
        call = whole.generate

        def updated(weights: Any) -> None:
            wall, cpu = time.perf_counter(), cpu_s()
            update(weights)
            began["cpu"] += cpu_s() - cpu
            began["wall"] += time.perf_counter() - wall

        def called(*asked: Any, **words: Any) -> Any:
            wall = time.perf_counter()
            made = call(*asked, **words)
            began["inside"] = time.perf_counter() - wall
            return made

        engine.update, whole.generate = updated, called
        try:
            return rollout(engine, *given, **more)
        finally:
            engine.update, whole.generate = update, call

    def written(path: Path, line: Any) -> None:
        write(path, line)
        wall, cpu = time.perf_counter() - began["wall"], cpu_s() - began["cpu"]
        gate.tell(wall=wall, cpu=cpu, inside=began["inside"])

    driver.StepClock, driver._rollout, driver.append_json_line = Gated, watched, written
    return exit_code(driver.replay)


def _engines_own(engine: Any) -> Any:
    """The engine as its package has it, behind a replay's; its `generate` is what a benchmark of it calls, too."""
    inner = next(value for name in ("_llm", "_engine", "_policy") if (value := getattr(engine, name, None)) is not None)
    return getattr(inner, "_engine", inner)


def plain(attempt: dict[str, Any], gate: Gate, *, released: bool) -> None:
    """The engine's own benchmark, on the steps that the replay has."""
    job = begin(attempt)
    settings = job.spec["trainer_args"]
    lengths, prompts = driver._lengths(settings, Path(attempt["attempt_dir"])), driver._prompts(job.inputs)
    with ENGINES[job.spec["engine"]](job.inputs.model, settings, len(job.affinity), released) as prepared:
        for step, wanted in enumerate(lengths):
            first = step * settings["prompts"]
            asked = [
                prompts[(first + n) % len(prompts)]
                for n in range(settings["prompts"])
                for _ in range(settings["num_generations"])
            ]
            gate.wait()
            repetition = prepared(asked, wanted)
            cpu = cpu_s()
            wall = repetition()
            gate.tell(wall=wall, cpu=cpu_s() - cpu)


@contextlib.contextmanager
def vllm(model: Path, settings: dict[str, Any], threads: int, released: bool) -> Iterator[Prepared]:
    """`vllm bench throughput --disable-detokenize`."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(released))
    from vllm import LLM
    from vllm.benchmarks.datasets import SampleRequest
    from vllm.benchmarks.throughput import _run_vllm_requests
    from vllm.engine.arg_utils import EngineArgs

    from engines.vllm.cpu import keep_threads

    longest = settings["max_prompt_length"] + settings["max_response_length"]
    words = {"dtype": settings["dtype"], "seed": settings["seed"], "max_model_len": longest}
    with keep_threads(threads):
        llm = LLM.from_engine_args(EngineArgs(model=str(model), **words, **settings["engine"]))

    def prepared(prompts: Sequence[list[int]], lengths: Sequence[int]) -> Callable[[], float]:
        requests = [
            SampleRequest(prompt={"prompt_token_ids": ids}, prompt_len=len(ids), expected_output_len=length)
            for ids, length in zip(prompts, lengths, strict=True)
        ]
        llm.reset_prefix_cache()  # as after an update of the weights
        return lambda: float(_run_vllm_requests(llm, requests, 1, True, False, False, False)[0])

    yield prepared
    llm.llm_engine.engine_core.shutdown()


@contextlib.contextmanager
def sglang(model: Path, settings: dict[str, Any], threads: int, released: bool) -> Iterator[Prepared]:
    """`sglang.benchmark.offline_throughput`, on prompts that are tokens."""
    from sglang.benchmark.datasets import DatasetRow
    from sglang.benchmark.offline_throughput import throughput_test_once

    from engines.sglang.client import Sglang

    longest = settings["max_prompt_length"] + settings["max_response_length"]
    room = {"max_total_tokens": 2 * settings["prompts"] * settings["num_generations"] * longest}
    server = Sglang(model, settings["dtype"], settings["seed"], {**room, **settings["engine"]}, Path(os.devnull))

    class OnTokens:
        """The server, whose benchmark calls prompts what are tokens here."""

        def generate(self, prompt: Any, **more: Any) -> Any:
            return server._ask("generate", input_ids=prompt, **more)

        def get_server_info(self) -> Any:
            return {"internal_states": [{"last_gen_throughput": 0.0}]}

    sampling = {"temperature": settings["temperature"], "top_p": settings["top_p"]}

    def prepared(prompts: Sequence[list[int]], lengths: Sequence[int]) -> Callable[[], float]:
        rows = [
            DatasetRow(prompt=ids, prompt_len=len(ids), output_len=length)
            for ids, length in zip(prompts, lengths, strict=True)
        ]
        server._ask("flush_cache")
        return lambda: float(throughput_test_once("engine", OnTokens(), rows, True, sampling, False)["total_latency"])

    yield prepared
    server.close()


@contextlib.contextmanager
def transformers(model: Path, settings: dict[str, Any], threads: int, released: bool) -> Iterator[Prepared]:
    """`generate` of the whole batch, until the longest is done; nothing ends a row before."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    torch.set_num_threads(threads)
    policy = AutoModelForCausalLM.from_pretrained(str(model), dtype=getattr(torch, settings["dtype"])).eval()
    policy.generation_config = GenerationConfig()
    words = {"do_sample": True, "temperature": settings["temperature"], "top_p": settings["top_p"], "top_k": 0}

    def prepared(prompts: Sequence[list[int]], lengths: Sequence[int]) -> Callable[[], float]:
        wide = max(map(len, prompts))
        ids = torch.tensor([[0] * (wide - len(one)) + one for one in prompts])
        mask = torch.tensor([[0] * (wide - len(one)) + [1] * len(one) for one in prompts])
        config = GenerationConfig(max_new_tokens=max(lengths), pad_token_id=0, **words)

        def repetition() -> float:
            began = time.perf_counter()
            with torch.no_grad():
                policy.generate(ids, attention_mask=mask, generation_config=config)
            return time.perf_counter() - began

        return repetition

    yield prepared


ENGINES = {"vllm": vllm, "sglang": sglang, "transformers": transformers}


def main() -> int:
    # Stopped as it may be, it does not outlive the bench.
    die_with_parent()
    role, attempt, go, told = sys.argv[1:]
    gate = Gate(int(go), int(told))
    sys.argv[1:] = [attempt]
    if role == "ours":
        return ours(gate)

    def benchmark(order: dict[str, Any], stop: StopRequest) -> None:
        plain(order, gate, released=role == "released")

    return exit_code(benchmark)


if __name__ == "__main__":
    sys.exit(main())
