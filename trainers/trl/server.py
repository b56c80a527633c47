"""Plans vLLM's server beside TRL's trainer: which GPUs it has, and what the trainer has left."""

from __future__ import annotations

from typing import Any

from common.errors import UserError
from trainers.workload import TrainedArm, Workload

MODULE = "trainers.trl.driver.serve"
_GPUS, _PATIENCE, _ARGS = "vllm_tensor_parallel_size", "vllm_server_timeout", "vllm_server_args"
_PATIENCE_S = 1800.0
"""For its first answer: it loads the model and compiles. TRL's own default is 240 s."""
_SHARE = 0.9
"""Of its GPUs' memory, as `trl vllm-serve` has it: nothing trains there."""


def is_wanted(arm: TrainedArm) -> bool:
    """Whether an arm's engine is a server of its own; `UserError` for a server's options where it is none."""
    wanted = arm.engine == "vllm" and arm.options.get("vllm_mode") == "server"
    if _ARGS in arm.options and not wanted:
        raise UserError(f"options.{_ARGS} is for a server; set options.vllm_mode to server, or take it out")
    return wanted


def words(arm: TrainedArm, workload: Workload) -> dict[str, Any]:
    """What stands in the settings of a server, beside those of any vLLM; the arm's options may say otherwise."""
    if arm.options.get("vllm_enable_sleep_mode"):
        raise UserError(
            "options.vllm_enable_sleep_mode is for a colocated vLLM: a server has GPUs of its own; take it out"
        )
    if not isinstance(arm.options.get(_ARGS, {}), dict):
        raise UserError(
            f"options.{_ARGS} must be names of vLLM's options and their values (got {arm.options[_ARGS]!r})"
        )
    on_gpu = {"vllm_gpu_memory_utilization": _SHARE} if workload.gpus_per_node else {}
    return {_GPUS: gpus(arm, workload), _PATIENCE: _PATIENCE_S, **on_gpu}


def gpus(arm: TrainedArm, workload: Workload) -> int:
    """GPUs that hold the server's model together, on a CPU 1; `UserError` where the trainer would share them.

    On one node they are the last of it; of several nodes the server has the last one.
    """
    each, nodes = workload.gpus_per_node, workload.nodes
    asked = arm.options.get(_GPUS, each if nodes > 1 and each else 1)
    most = 1 if not each else each - 1 if nodes == 1 else each
    least = each if nodes > 1 and each else 1
    if isinstance(asked, bool) or not isinstance(asked, int) or not least <= asked <= most:
        allowed = str(least) if least == most else f"{least} to {most}" if most else "none"
        where = "the job's last node" if nodes > 1 else f"the last of the node's {each} GPUs" if each else "the CPU"
        raise UserError(
            f"vllm_mode server needs GPUs that nothing trains on: the server would have {where}, and options.{_GPUS} "
            f"may be {allowed} (got {asked!r}); change it, or workload.nodes and workload.gpus_per_node "
            f"({nodes} and {each})"
        )
    return asked


def processes(arm: TrainedArm, workload: Workload) -> int:
    """The trainer's processes beside the server: one for each GPU that is left, on a CPU for each node that is left."""
    if workload.nodes > 1:
        return (workload.nodes - 1) * max(1, workload.gpus_per_node)
    return max(1, workload.gpus_per_node - gpus(arm, workload))


def of_a_spec(args: dict[str, Any]) -> dict[str, Any] | None:
    """What the job needs to know of a server with these settings; None where there is none."""
    if not (args.get("use_vllm") and args.get("vllm_mode") == "server"):
        return None
    return {"module": MODULE, "gpus": 0 if args.get("use_cpu") else int(args[_GPUS]), "patience_s": args[_PATIENCE]}
