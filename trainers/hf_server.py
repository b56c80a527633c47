"""Plans vLLM's server for TRL's or ms-swift's trainer: its GPUs, and the GPUs that remain for the trainer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from common.errors import UserError
from node.engine_server import uses_server
from trainers.timers.tree import NATIVE, TimerTree
from trainers.workload import TrainedArm, Workload

SERVER = ("vllm_mode", "server")
"""The setting that makes vLLM a server, and its value."""
TENSOR_PARALLEL, DATA_PARALLEL = "vllm_tensor_parallel_size", "vllm_data_parallel_size"
"""GPUs per engine of the server, and its engines; TRL's server has one engine."""
_TIMEOUT = "vllm_server_timeout"
_TIMEOUT_S = 1800.0
"""For the server's first answer: it loads the model and compiles. The trainers' own default is 240 s."""
_MEMORY_SHARE = 0.9
"""The share of its GPUs' memory, as in the trainers' own server commands: nothing trains there."""


def is_server_arm(arm: TrainedArm) -> bool:
    """Whether an arm's engine is a server."""
    return arm.engine == "vllm" and arm.options.get(SERVER[0]) == SERVER[1]


def settings(arm: TrainedArm, workload: Workload, parallel: tuple[str, ...]) -> dict[str, Any]:
    """The defaults for a server, in addition to those of any vLLM.

    `parallel` are the trainer's settings whose product is the server's GPUs.
    """
    server_gpus = gpus(arm, workload, parallel)
    timeout = arm.options.get(_TIMEOUT, _TIMEOUT_S)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0:
        raise UserError(f"options.{_TIMEOUT} must be the seconds for the server's first answer (got {timeout!r})")
    others = math.prod(arm.options.get(option, 1) for option in parallel[1:])
    on_gpu = {"vllm_gpu_memory_utilization": _MEMORY_SHARE} if workload.gpus_per_node else {}
    return {parallel[0]: server_gpus // others, _TIMEOUT: _TIMEOUT_S, **on_gpu}


def reject_options(arm: TrainedArm, *options: str) -> None:
    """`UserError` for options that only a colocated vLLM needs: they free its GPU for the update."""
    for option in options:
        if arm.options.get(option):
            raise UserError(f"options.{option} is for a colocated vLLM: a server has its own GPUs; remove the option")


def gpus(arm: TrainedArm, workload: Workload, parallel: tuple[str, ...]) -> int:
    """A server's GPUs, on a CPU 1; `UserError` if the trainer would share them.

    On one node the server has the last GPUs. On several nodes it has the last node, and by default all of that node's
    GPUs as engines of the given size: few models have heads that eight GPUs divide.
    """
    each, nodes = workload.gpus_per_node, workload.nodes
    most = 1 if not each else each - 1 if nodes == 1 else each
    given = {option: arm.options[option] for option in parallel if option in arm.options}
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in given.values())
    asked = math.prod(given.values()) if whole else 0
    if parallel[0] not in given and whole and asked:
        # The given engines share the server's GPUs.
        asked *= max(1, (each if nodes > 1 else 1) // asked)
    if not 1 <= asked <= most:
        # On one node the trainer's processes must also share the batch equally.
        equal = [n for n in range(1, most + 1) if nodes > 1 or not each or workload.batch_size % (each - n) == 0]
        some = " or ".join(map(str, equal)) or ("none with this workload.batch_size" if most else "none")
        allowed = f"1 to {most}" if len(equal) == most > 1 else some
        where = "the job's last node" if nodes > 1 else f"the last of {each} GPUs" if each else "the CPU"
        names = " times ".join(f"options.{option}" for option in parallel)
        got = " times ".join(repr(number) for number in given.values()) or repr(asked)
        raise UserError(
            f"vllm_mode server needs GPUs that nothing trains on: the server would have {where}, and {names} "
            f"may be {allowed} (got {got}); change it, or workload.nodes and workload.gpus_per_node "
            f"({nodes} and {workload.gpus_per_node})"
        )
    return asked


def training_processes(arm: TrainedArm, workload: Workload, parallel: tuple[str, ...]) -> int:
    """The trainer's processes: one per GPU that no server has, on a CPU one per such node."""
    if not is_server_arm(arm):
        return workload.processes
    if workload.nodes > 1:
        return (workload.nodes - 1) * max(1, workload.gpus_per_node)
    return max(1, workload.gpus_per_node - gpus(arm, workload, parallel))


def needs(module: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """The server that the trainer needs (`Driver.needs`), with its `module`; nothing without one."""
    if not uses_server(args):
        return {}
    server_gpus = 0 if args.get("use_cpu") else engines_and_gpus(args)[1]
    return {"server": {"module": module, "gpus": server_gpus, "patience_s": args[_TIMEOUT]}}


def engines_and_gpus(values: Mapping[str, Any]) -> tuple[int, int]:
    """The engines of a server with these settings, and its GPUs."""
    engines = int(values.get(DATA_PARALLEL) or 1)
    return engines, engines * int(values.get(TENSOR_PARALLEL) or 1)


def gpus_beside(settings: Mapping[str, Any], tree: TimerTree, separate: bool) -> int | None:
    """GPUs of a server alone: in a driven run the workload includes them; no setting shows another's."""
    is_ours = settings.get(SERVER[0]) == SERVER[1] and tree.mode != NATIVE
    return 0 if is_ours or not separate else None
