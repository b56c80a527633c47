"""Checks a run of ms-swift before it is queued (options that it or vLLM refuses on the node); estimates its memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from common.findings import Finding
from common.model_facts import ModelFacts
from trainers import hf_server
from trainers.cases import Case, Settings
from trainers.hf_arguments import FSDP
from trainers.memory_estimate import GIB, MemoryEstimate, Part
from trainers.protocol import Variables
from trainers.swift.settings import MAX_TURNS, SCHEDULER, scheduler_of, sends_adapters, trains_adapter
from trainers.trl import checks as trl_checks
from trainers.trl.checks import RefusedOption
from trainers.trl.trainer import memory as trl_memory

_ARGUMENTS = "swift/arguments/rlhf_args.py"
_DRIVER = "trainers/swift/driver/train.py"
_LENGTHS = ("max_prompt_length", "max_response_length")
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


def memory(case: Case, gib: float, model: ModelFacts) -> MemoryEstimate:
    """Memory of the policy and the engine in each process, as with TRL."""
    settings = case.settings
    if scheduler_of(case):
        longest = {key: case.workload[key] * settings.int(MAX_TURNS, 1) for key in _LENGTHS}
        case = dataclasses.replace(case, workload={**case.workload, **longest})
    as_trl = {
        trl_checks.WEIGHTS: settings.get("torch_dtype"),
        "vllm_enable_sleep_mode": settings.int("sleep_level") > 0,
    }
    read = Settings({**settings.values, **as_trl}, settings.given, settings.composed)
    # swift has a rank also if the whole model is trained.
    adapter = settings.get("tuner_type", "full") != "full"
    found = trl_memory(dataclasses.replace(case, settings=read), gib, model, adapter, whole_reference=False)
    rollout = found.rollout
    if settings.true("offload_model") and settings.true("offload_optimizer"):
        rollout = rollout[1:]
    if settings.true(FSDP[0]) and not (case.engine.in_trainer or hf_server.is_served(case)):
        rollout += _gathered(case, model, rollout[-1].gib)
    return dataclasses.replace(
        found,
        rollout=rollout,
        update_advice="a smaller model or micro_batch_size, sleep_level: 2, tuner_type: lora, or fsdp: true on more "
        "GPUs",
        rollout_advice="vllm_gpu_memory_utilization: less, or offload_model and offload_optimizer: true; with fsdp "
        "move_model_batches: 8",
    )


def _gathered(case: Case, model: ModelFacts, cache: float) -> tuple[Part, ...]:
    """The weights that each process gathers to send them, beyond the memory of a sleeping engine's cache.

    ms-swift 4.6.0 rlhf_trainers/rollout_mixin.py (_collect_state_dict_for_vllm): all of them at once.
    """
    if case.settings.int("move_model_batches"):
        return ()
    more = (model.parameters or 0) * 4 / GIB - (cache if case.settings.int("sleep_level") else 0.0)
    name = "the weights gathered for the engine, 4 bytes each, beyond its cache"
    return (Part(name, more, True),) if more > 0 else ()
