"""Plans vLLM's server beside TRL's or ms-swift's trainer: its GPUs, and what the trainer has left."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from common.errors import UserError
from common.findings import Finding
from node.engine_server import uses_server
from trainers.cases import Case
from trainers.protocol import Variables
from trainers.workload import TrainedArm, Workload

SERVER = ("vllm_mode", "server")
"""The setting with which vLLM is a server of its own."""
TENSOR_PARALLEL, DATA_PARALLEL = "vllm_tensor_parallel_size", "vllm_data_parallel_size"
"""GPUs that hold the model together, and such engines in the server; TRL's has one."""
_PATIENCE = "vllm_server_timeout"
_PATIENCE_S = 1800.0
"""For its first answer: it loads the model and compiles. The trainers' own default is 240 s."""
_SHARE = 0.9
"""Of its GPUs' memory, as the trainers' own commands for a server have it: nothing trains there."""


def is_wanted(arm: TrainedArm) -> bool:
    """Whether an arm's engine is a server of its own."""
    return arm.engine == "vllm" and arm.options.get(SERVER[0]) == SERVER[1]


def words(arm: TrainedArm, workload: Workload, parallel: tuple[str, ...]) -> dict[str, Any]:
    """What stands in the settings of a server, beside those of any vLLM; the arm's options may say otherwise.

    `parallel` are the trainer's settings whose product is the server's GPUs.
    """
    whole = gpus(arm, workload, parallel)
    patience = arm.options.get(_PATIENCE, _PATIENCE_S)
    if isinstance(patience, bool) or not isinstance(patience, int | float) or patience <= 0:
        raise UserError(f"options.{_PATIENCE} must be the seconds for the server's first answer (got {patience!r})")
    others = math.prod(arm.options.get(word, 1) for word in parallel[1:])
    on_gpu = {"vllm_gpu_memory_utilization": _SHARE} if workload.gpus_per_node else {}
    return {parallel[0]: whole // others, _PATIENCE: _PATIENCE_S, **on_gpu}


def require_no(arm: TrainedArm, *options: str) -> None:
    """`UserError` for options that make room for the update where a server has GPUs of its own."""
    for option in options:
        if arm.options.get(option):
            raise UserError(f"options.{option} is for a colocated vLLM: a server has GPUs of its own; take it out")


def gpus(arm: TrainedArm, workload: Workload, parallel: tuple[str, ...]) -> int:
    """GPUs that a server has, on a CPU 1; `UserError` where the trainer would share them.

    They are the last of a node. Of several nodes the trainer leaves the server the last one, all of whose GPUs it
    takes where the arm does not say how many: few models have heads that eight of them divide.
    """
    each, nodes = workload.trainer_gpus, workload.nodes
    most = 1 if not each else each - 1 if nodes == 1 else each
    given = {word: arm.options[word] for word in parallel if word in arm.options}
    counts = all(isinstance(number, int) and not isinstance(number, bool) for number in given.values())
    asked = math.prod(given.values()) if counts else 0
    if parallel[0] not in given and counts and asked:
        # The engines that are asked for share what the server has.
        asked *= max(1, (each if nodes > 1 else 1) // asked)
    if not 1 <= asked <= most:
        allowed = "1" if most == 1 else f"1 to {most}" if most else "none"
        where = "the job's last node" if nodes > 1 else f"the last of {each} GPUs" if each else "the CPU"
        names = " times ".join(f"options.{word}" for word in parallel)
        got = " times ".join(repr(number) for number in given.values()) or repr(asked)
        raise UserError(
            f"vllm_mode server needs GPUs that nothing trains on: the server would have {where}, and {names} "
            f"may be {allowed} (got {got}); change it, or workload.nodes and workload.gpus_per_node "
            f"({nodes} and {workload.gpus_per_node})"
        )
    return asked


def processes(arm: TrainedArm, workload: Workload, parallel: tuple[str, ...]) -> int:
    """The trainer's processes beside the server: one for each GPU that is left, on a CPU for each node that is left."""
    if workload.nodes > 1:
        return (workload.nodes - 1) * max(1, workload.gpus_per_node)
    return max(1, workload.trainer_gpus - gpus(arm, workload, parallel))


def of_a_spec(module: str, args: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the job needs to know of a server with these settings, which `module` is; None where there is none."""
    if not uses_server(args):
        return None
    return {"module": module, "gpus": 0 if args.get("use_cpu") else engines(args)[1], "patience_s": args[_PATIENCE]}


def engines(settings: Mapping[str, Any]) -> tuple[int, int]:
    """The engines in a server with these settings, and its GPUs."""
    several = int(settings.get(DATA_PARALLEL) or 1)
    return several, several * int(settings.get(TENSOR_PARALLEL) or 1)


def serves(case: Case) -> bool:
    """Whether a run's engine is a server beside its trainer."""
    return case.settings.get(SERVER[0]) == SERVER[1] and not case.engine.in_trainer


def training_gpus(case: Case) -> int:
    """GPUs of a run that train, on a CPU 1: those that are no server's, nor on the node that it has of several."""
    nodes = int(case.workload.get("nodes") or 1)
    of_server = case.trainer_gpus // nodes if nodes > 1 else engines(case.settings.values)[1]
    return max(1, case.trainer_gpus - of_server * serves(case))


def idle_gpus(case: Case, variables: Variables) -> Iterator[Finding]:
    """GPUs of a server's own node that it leaves alone; the trainer cannot have them."""
    nodes, used = int(case.workload.get("nodes") or 1), engines(case.settings.values)[1]
    each = case.trainer_gpus // nodes
    if case.imported or nodes == 1 or not serves(case) or used >= each:
        return
    words = [word for word in (TENSOR_PARALLEL, DATA_PARALLEL) if word in case.settings]
    yield Finding(
        "odd",
        "server-gpus-idle",
        (case.arm,),
        f"the server uses {used} of its node's {each} GPUs: {' times '.join(words)} is {used}",
        f"the other {each - used} do nothing and are paid for: the trainer runs on the other nodes",
        "docs/trl.md#a-vllm-server-beside-the-trainer",
        f"{' times '.join(words)}: {each}, where that divides the model's heads; or workload.nodes: 1",
    )


def engine_gpus(mode: str, settings: Mapping[str, Any]) -> int | None:
    """A run of ours has its server's GPUs among the workload's; of others no setting tells."""
    return 0 if not mode and settings.get(SERVER[0]) == SERVER[1] else None
