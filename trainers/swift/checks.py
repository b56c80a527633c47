"""Checks a run of ms-swift before it is queued (options that it or vLLM refuses on the node)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from common.findings import Finding
from trainers.cases import Case, Variables
from trainers.swift.settings import SCHEDULER, scheduler_of, sends_adapters, trains_adapter
from trainers.trl import checks as trl_checks
from trainers.trl.checks import RefusedOption

_ARGUMENTS = "swift/arguments/rlhf_args.py"
_DRIVER = "trainers/swift/driver/train.py"
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM 0.31 has kernels for (vllm/config/lora.py)."""

DRIVEN = "math_tip_trick"
"""The one scheduler of ms-swift that the driver supports."""
NOT_DRIVEN = {
    "gym_scheduler": "it needs a named environment, and workload.rewards gives the score",
    "openenv_scheduler": "its environments are servers, and workload.rewards gives the score",
    "thinking_tips_scheduler": "it is for thinking models, whose template is not the tokenizer's own",
}
"""The schedulers that it does not support, and why."""


def _scheduler(refused: Callable[[str], bool], why: str, file: str = "", quote: str = "") -> RefusedOption:
    def is_refused(case: Case) -> bool:
        name = scheduler_of(case)
        return bool(name) and f"{SCHEDULER}.class" not in case.settings and refused(name)

    change = f"{SCHEDULER}: {DRIVEN}, or your own class (docs/swift.md#several-turns)"
    return RefusedOption(SCHEDULER, is_refused, why, file, quote, change)


REFUSALS = (
    RefusedOption(
        "async_generate",
        lambda case: case.settings.true("async_generate") and case.settings.get("vllm_mode") != "server",
        "an engine inside the training process cannot generate while the process trains",
        _ARGUMENTS,
        "async generate require vllm_mode == server",
        "vllm_mode: server, or async_generate: false",
    ),
    RefusedOption(
        "async_generate",
        lambda case: case.settings.true("async_generate") and bool(scheduler_of(case)),
        "completions that are generated ahead have one turn",
        _ARGUMENTS,
        "async_generate is not supported with multi-turn functionality",
        f"async_generate: false, or remove {SCHEDULER}",
    ),
    _scheduler(
        lambda name: name not in (DRIVEN, *NOT_DRIVEN),
        "ms-swift has no scheduler of that name",
        "swift/rlhf_trainers/rollout_mixin.py",
        "assert args.multi_turn_scheduler in multi_turns",
    ),
    *(_scheduler(name.__eq__, why) for name, why in NOT_DRIVEN.items()),
    RefusedOption(
        "sleep_level",
        lambda case: case.settings.int("sleep_level") > 0 and not case.on_gpu,
        "vLLM sleeps on GPUs only",
        "vllm/config/model.py",
        "Sleep mode is not supported on current platform",
        "sleep_level: 0",
    ),
    RefusedOption(
        "move_model_batches",
        lambda case: case.settings.int("move_model_batches") > 0 and case.engine.name == "vllm" and not case.on_gpu,
        "on a CPU vLLM needs all new weights at once: it packs them for its kernels",
        "",
        "",
        "remove move_model_batches",
    ),
    dataclasses.replace(trl_checks.TENSOR_PARALLEL, file="swift/rlhf_trainers/rollout_mixin.py"),
    trl_checks.MEMORY_SHARE,
    RefusedOption(
        "lora_rank",
        lambda case: sends_adapters(case) and case.settings.int("lora_rank", 8) not in LORA_RANKS,
        "vLLM supports adapters of these ranks only",
        "vllm/config/lora.py",
        f"MaxLoRARanks = Literal[{', '.join(map(str, LORA_RANKS))}]",
        f"lora_rank: one of {', '.join(map(str, LORA_RANKS))}; or vllm_enable_lora: false to send merged weights",
    ),
)


def refusals(case: Case, variables: Variables) -> Iterator[Finding]:
    """Options that end the run: those that ms-swift's parser refuses in the stack, and those it accepts."""
    return trl_checks.refused(case, REFUSALS, "swift-refuses", _DRIVER)


def overlapping(case: Case, variables: Variables) -> Iterator[Finding]:
    """A loop that generates the next step's responses during training."""
    if case.settings.true("async_generate"):
        yield Finding(
            "odd",
            "trainer-mode",
            (case.arm,),
            "async_generate: True",
            "responses are generated during the step before, by weights that are one update older. The phases of a "
            "step do not add up to its time: the report has only its time and throughput. A resumed run repeats some "
            "prompts",
            "ms-swift 4.6.0, rlhf_trainers/rollout_mixin.py (_fast_infer, _prefetch)",
            "async_generate: false, to compare engines",
        )


def weights_in_half(case: Case, variables: Variables) -> Iterator[Finding]:
    """The optimizer's weights in 16 bits; an adapter's are always float32."""
    if not trains_adapter(case):
        yield from trl_checks.weights_in_half(case, variables, "torch_dtype")
