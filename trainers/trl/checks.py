"""Checks a run of TRL before it waits in a queue: what TRL or vLLM would refuse on the node, and what reads oddly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from common.errors import UserError
from common.findings import Finding
from trainers.cases import Case
from trainers.hf_arguments import HALF
from trainers.protocol import Variables
from trainers.trl.driver.options import LORA, is_of_lora
from trainers.workload import TrainedArm

WEIGHTS = "model_init_kwargs.dtype"


@dataclass(frozen=True, slots=True)
class RefusedOption:
    """A setting that ends a run when its trainer is built, after GRPOConfig has taken it."""

    setting: str
    refused: Callable[[Case], bool]
    why: str
    file: str
    """Where it is refused, among the stack's packages; empty where our driver has no answer to it."""
    words: str
    """What is said there."""
    change: str


def _share_of_memory(case: Case) -> bool:
    share = case.settings.number("vllm_gpu_memory_utilization")
    return share is not None and not 0 < share <= 1


def _engine_over_nodes(case: Case) -> bool:
    # A server's GPUs are no training processes, and the plan has divided them.
    if case.settings.get("vllm_mode") == "server":
        return False
    return max(1, case.trainer_gpus // int(case.workload.get("nodes") or 1)) % case.tensor_parallel != 0


TENSOR_PARALLEL = RefusedOption(
    "vllm_tensor_parallel_size",
    _engine_over_nodes,
    "it has to divide the training processes, one for each GPU, and an engine lies on one node",
    "trl/generation/vllm_generation.py",
    "must divide world size",
    "vllm_tensor_parallel_size: 1, or one that divides workload.gpus_per_node",
)
MEMORY_SHARE = RefusedOption(
    "vllm_gpu_memory_utilization",
    _share_of_memory,
    "it is a share of the GPU's memory",
    "vllm/config/cache.py",
    "gpu_memory_utilization: float = Field(default=0.92, gt=0, le=1)",
    "vllm_gpu_memory_utilization: more than 0 and at most 1",
)
REFUSALS = (
    TENSOR_PARALLEL,
    RefusedOption(
        "vllm_enable_sleep_mode",
        lambda case: case.settings.true("vllm_enable_sleep_mode") and not case.on_gpu,
        "vLLM sleeps on GPUs only",
        "vllm/config/model.py",
        "Sleep mode is not supported on current platform",
        "vllm_enable_sleep_mode: false",
    ),
    MEMORY_SHARE,
    RefusedOption(
        "sync_ref_model",
        lambda case: case.settings.true("sync_ref_model") and not float(case.workload.get("beta") or 0),
        "with workload.beta 0 there is no reference model",
        "trl/trainer/grpo_trainer.py",
        "You passed `sync_ref_model=True` while `beta=0.0`",
        "sync_ref_model: false, or workload.beta more than 0",
    ),
)


def refused(case: Case, table: Iterable[RefusedOption], code: str, driver: str) -> Iterator[Finding]:
    """The options of a table that would end the run on the node; `driver` is the file that has no answer to some."""
    for one in table:
        if not case.imported and one.refused(case):
            yield Finding(
                "impossible",
                code,
                (case.arm,),
                f"{one.setting} is {case.settings.get(one.setting)}",
                one.why,
                f"{one.file or driver}; docs/preflight.md#impossible",
                one.change,
            )


def refusals(case: Case, variables: Variables) -> Iterator[Finding]:
    """Options that pass GRPOConfig and end the run on the node."""
    return refused(case, REFUSALS, "trl-refuses", "trainers/trl/driver/train.py")


def weights_in_half(case: Case, variables: Variables, setting: str = WEIGHTS) -> Iterator[Finding]:
    """The optimizer's own weights in 16 bits, as `setting` says, or those that an adapter is merged into."""
    held = case.settings.get(setting)
    if held not in HALF:
        return
    if case.settings.true(LORA):
        yield from _merged_in_half(case, setting, str(held))
        return
    yield Finding(
        "odd",
        "weights-in-half",
        (case.arm,),
        f"the optimizer holds the policy in {held} ({setting})",
        "with a small learning rate most updates are smaller than a rounding step of such weights and are lost",
        "torch.optim.AdamW updates the weights as they are; our driver's default is float32",
        f"take {setting} out (it takes more memory; passes are in workload.dtype all the same)",
    )


def _merged_in_half(case: Case, setting: str, held: str) -> Iterator[Finding]:
    """peft keeps the adapter itself in float32; generation in the trainer merges nothing."""
    if not case.engine.in_trainer:
        yield Finding(
            "odd",
            "merged-in-half",
            (case.arm,),
            f"the adapter is merged into weights in {held} at each step, and taken out again ({setting})",
            "each merge is rounded, and the frozen weights keep what is left of it: they drift",
            "docs/trl.md#lora; trl/generation/vllm_generation.py (merge_adapter, unmerge_adapter)",
            f"take {setting} out: the frozen weights are float32 then, and passes are in workload.dtype all the same",
        )


def require_lora(arm: TrainedArm) -> None:
    """`UserError` for an adapter's words without the one that turns it on, which would do nothing, and for SGLang."""
    given = [name for name in arm.options if is_of_lora(name) and name != LORA]
    if given and arm.options.get(LORA) is not True:
        raise UserError(f"options.{given[0]} is for a LoRA adapter; set options.{LORA} to true, or take it out")
    if arm.options.get(LORA) and arm.engine == "sglang":
        raise UserError(
            f"options.{LORA} cannot be used with engine sglang and trainer trl: it is handed the policy's own weights, "
            "and an adapter is not merged into them. Take engine vllm or transformers"
        )
