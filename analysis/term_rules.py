"""Lists what the table of terms takes as equal in effect, and what is known of runs without settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import PurePosixPath
from typing import NamedTuple

from trainers.cases import Case
from trainers.registry import trainers

# The packages that compute. The engines' own packages are not listed: they are what is compared.
PACKAGES = (
    *("torch", "triton", "transformers", "flash-attn", "nvidia-nccl-cu12", "nvidia-cudnn-cu12"),
    *("ray", "numpy", "trl", "verl"),
)
# Variables that do not affect speed: no finding, and equivalent. FSDP does not use Transformer Engine, whose is NVTE_*.
HARMLESS = frozenset(
    {
        *("HYDRA_FULL_ERROR", "NVTE_FUSED_ATTN", "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER"),
        *("SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE"),
        *("WANDB_ENTITY", "WANDB_MODE", "WANDB_PROJECT", "WANDB_SILENT"),
    }
)
# Those that name a job's processors and GPUs.
NO_SPEED = HARMLESS | {"CUDA_VISIBLE_DEVICES", "VLLM_CPU_OMP_THREADS_BIND"}
# What a run reports of its machine; which host it is does not count. And of its inputs, by key of done.json.
HARDWARE = ("cpu", "cpus", "threads", "memory_gib", "gpus", "driver")
INPUTS = {"data_sha256": "training data", "model_sha256": "starting model", "reward_models_sha256": "reward models"}
NO_EFFECT = "a place, a name, a tracker or a seed, or an option that the other engine ignores"


class Unequal(NamedTuple):
    """The finding on a term in which arms differ."""

    code: str
    why: str
    change: str


_IMPORT = "runs that share it; or, if the import states it wrongly, correct arms.<arm>.import"
TENSOR_PARALLEL = "GPUs of one engine (tensor parallel)"
_MACHINE = Unequal("hardware-differs", "another machine has another speed", "runs on machines of one kind")
_INPUT = Unequal("inputs-differ", "the arms do not do the same work", "the same files for all arms")
STATED: Mapping[str, Unequal] = {
    name: Unequal("import-differs", why, _IMPORT)
    for name, why in {
        "workload.gpu": "another GPU has another speed, whatever the engine",
        "workload.nodes": "other nodes are other machines and another network",
        "workload.gpus_per_node": "more GPUs do the same work sooner",
        "workload.batch_size": "a step of more completions is more work",
        "workload.max_response_length": "where longer responses are allowed, a step waits longer for its longest",
        "workload.model": "another model takes another time for each token",
        TENSOR_PARALLEL: "it decides how fast a response is written and how many run at once",
    }.items()
}
"""What an import may state of its runs."""
UNEQUAL: Mapping[str, Unequal] = {
    **STATED,
    "package torch": Unequal(
        "torch-versions",
        "its kernels, its allocator and its compiler run in training and in both engines",
        "stacks that pin the same release",
    ),
    **{f"hardware.{name}": _MACHINE for name in HARDWARE if name != "memory_gib"},
    **dict.fromkeys(INPUTS.values(), _INPUT),
    "commit of rolloutbench": Unequal(
        "code-differs",
        "other code trains, times and reads the runs",
        "runs of one commit",
    ),
}
"""The terms that make arms unequal by themselves. What a setting does is for the trainer's own rules."""


def _own_options(cases: Iterable[Case]) -> tuple[str, ...]:
    """The prefixes of settings that are an engine's own options."""
    found = (case.trainer.rules.engine_options.replace("{engine}", case.engine.name) for case in cases)
    return tuple(filter(None, dict.fromkeys(found)))


def engines_own(key: str, cases: Sequence[Case]) -> bool:
    """Whether a setting is one engine's own option, in a comparison of several engines."""
    return len({case.engine.name for case in cases}) > 1 and key.startswith(_own_options(cases))


def names_the_engine(key: str, cases: Sequence[Case]) -> bool:
    """Whether a setting selects the engine, or holds its name."""
    switches = {one for case in cases for one in case.trainer.rules.engine_switches}
    return key in switches or all(case.settings.get(key) == case.engine.name for case in cases)


@cache
def is_bookkeeping(key: str) -> bool:
    """Whether a setting is a name, a tracker, a place or a seed, by any trainer's rules."""
    return key.endswith("seed") or any(key.rpartition(".")[2] in one.rules.bookkeeping for one in trainers())


def matters(key: str, cases: Sequence[Case]) -> bool:
    """Whether a difference in a setting can change the work."""
    if is_bookkeeping(key):
        return False
    if any(key in case.trainer.rules.changes_text for case in cases):
        return True
    # The added dot also matches a section that is empty.
    specific = (*_own_options(cases), *(one for case in cases for one in case.trainer.rules.engine_specific))
    if f"{key}.".startswith(specific):
        return len({case.engine.name for case in cases}) == 1
    # What is written into a folder takes time; which folder it is does not matter.
    return not key.endswith("_dir") or any(case.settings.get(key) is None for case in cases)


def same_file_names(key: str, values: Sequence[object]) -> bool:
    """Whether a setting names a file by one name in several folders: only its content could tell."""
    return key.endswith(".path") and len({PurePosixPath(str(value)).name for value in values}) == 1
