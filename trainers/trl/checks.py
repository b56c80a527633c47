"""Checks a run of TRL before it is queued: options that TRL or vLLM refuses on the node, and odd ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from common.errors import UserError
from common.findings import Finding
from trainers.cases import Case, Variables
from trainers.hf_arguments import HALF
from trainers.trl.driver.options import LORA, is_lora_setting
from trainers.workload import TrainedArm

WEIGHTS = "model_init_kwargs.dtype"


@dataclass(frozen=True, slots=True)
class RefusedOption:
    """A setting that GRPOConfig accepts but that ends the run when the trainer is built."""

    setting: str
    refused: Callable[[Case], bool]
    why: str
    file: str
    """The file that refuses it, among the stack's packages; empty if the driver does not support it."""
    quote: str
    """The text of the refusal in that file."""
    change: str


def _share_of_memory(case: Case) -> bool:
    share = case.settings.number("vllm_gpu_memory_utilization")
    return share is not None and not 0 < share <= 1


def _engine_over_nodes(case: Case) -> bool:
    # A server's GPUs are no training processes; the plan checks them.
    if case.settings.get("vllm_mode") == "server":
        return False
    return max(1, case.gpus // int(case.workload.get("nodes") or 1)) % case.tensor_parallel != 0


TENSOR_PARALLEL = RefusedOption(
    "vllm_tensor_parallel_size",
    _engine_over_nodes,
    "it must divide the training processes (one per GPU), and an engine runs on one node",
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
    """The options of a table that would end the run on the node; `driver` is the file that does not support some."""
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
    """Options that GRPOConfig accepts and that end the run on the node."""
    return refused(case, REFUSALS, "trl-refuses", "trainers/trl/driver/train.py")


def weights_in_half(case: Case, variables: Variables, setting: str = WEIGHTS) -> Iterator[Finding]:
    """The optimizer's weights in 16 bits (by `setting`), or frozen 16-bit weights that an adapter is merged into."""
    dtype = case.settings.get(setting)
    if dtype not in HALF:
        return
    if not case.settings.true(LORA):
        yield Finding(
            "odd",
            "weights-in-half",
            (case.arm,),
            f"the optimizer's weights are {dtype} ({setting})",
            "with a small learning rate most updates are smaller than a rounding step of such weights and are lost",
            "torch.optim.AdamW updates the weights in their format; the driver's default is float32",
            f"remove {setting}: weights are float32 then (more memory); passes stay in workload.dtype",
        )
    # peft keeps the adapter itself in float32. Generation in the trainer merges nothing.
    elif not case.engine.in_trainer:
        yield Finding(
            "odd",
            "merged-in-half",
            (case.arm,),
            f"each step merges the adapter into {dtype} weights and removes it again ({setting})",
            "each merge is rounded, and the rounding errors stay in the frozen weights: they drift",
            "docs/trl.md#lora; trl/generation/vllm_generation.py (merge_adapter, unmerge_adapter)",
            f"remove {setting}: the frozen weights are float32 then; passes stay in workload.dtype",
        )


def require_lora(arm: TrainedArm) -> None:
    """`UserError` for an adapter's options without the switch that turns it on, and for an adapter with SGLang."""
    given = [name for name in arm.options if is_lora_setting(name) and name != LORA]
    if given and arm.options.get(LORA) is not True:
        raise UserError(f"options.{given[0]} is for a LoRA adapter; set options.{LORA} to true, or remove it")
    if arm.options.get(LORA) and arm.engine == "sglang":
        raise UserError(
            f"options.{LORA} cannot be used with engine sglang and trainer trl: SGLang gets the policy's weights "
            "without the adapter merged into them. Use engine vllm or transformers"
        )
