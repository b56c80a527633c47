"""Starts a node's share of a trainer's processes with torchrun's variables; when one dies, ends the others.

    python -m node.ranks --nodes 2 --node 0 --each 8 --at 10.0.0.1:29400 --report FILE -m MODULE ATTEMPT

runs `python -m MODULE ATTEMPT` once for each GPU. It ends as they do: 0, 2 or 75 as node/exit_codes.py says, 128 more
than the signal that killed one, or 1. FILE says which process died first.

torch's own torchrun is not used: it ends with 1 whatever its processes end with, at a stop signal as well (torch 2.13,
torch/distributed/launcher/api.py raises ChildFailedError or SignalException), so 2 and 75 are lost. It kills them 30 s
after a stop signal unless --shutdown-timeout says otherwise (torch/distributed/run.py).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from node.exit_codes import OK, REQUEUE, STOP_SIGNALS, USER_ERROR
from node.records import write_json

GRACE_S = 10.0
"""For the others, once a process has died: they write what they know of it."""
STOPPED_GRACE_S = 60.0
"""For the others, once a process has stopped as it was asked to: its checkpoint is written, so are theirs."""
SHARE = "ROLLOUTBENCH_SHARE"
"""What the processes of a node have of it beside an engine's server: the first part, how many, and of how many."""
_POLL_S = 0.1
_PR_SET_PDEATHSIG = 1


def world_size() -> int:
    """The processes that this one trains with, itself counted."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> tuple[int, int]:
    """This process's number among those of its node, and how many they are."""
    return int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def cpu_share() -> tuple[int, int, int]:
    """This process's share of its node's CPUs: the first part of it, how many parts, and of how many."""
    local, of_node = local_rank()
    first, width, parts = map(int, os.environ.get(SHARE, f"0,{of_node},{of_node}").split(","))
    return first + local * (width // of_node), width // of_node, parts


def torchrun_variables(nodes: int, node: int, each: int, local: int, at: str) -> dict[str, str]:
    """torchrun's variables for a node's `local`-th process; `at` is the address at which all of them meet."""
    host, _, port = at.rpartition(":")
    return {
        "RANK": str(node * each + local),
        "WORLD_SIZE": str(nodes * each),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(each),
        "GROUP_RANK": str(node),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
    }


def first_cause(ended: Mapping[int, int]) -> int:
    """Whose end explains those of the others, of processes that were found ended together: rank -> exit code."""
    return min(ended, key=lambda rank: (ended[rank] == REQUEUE, ended[rank] >= 0, ended[rank] != USER_ERROR, rank))


def describe_exit(code: int) -> str:
    """A process's exit code, for people."""
    names = {int(one): one.name for one in signal.Signals}
    return f"was killed by {names.get(-code, -code)}" if code < 0 else f"ended with exit code {code}"


def describe_rank_exit(rank: int, ranks: int, code: int) -> str:
    """How one of the processes ended, for people."""
    host = os.environ.get("SLURMD_NODENAME") or platform.node()
    return f"rank {rank} of {ranks} on {host} {describe_exit(code)}"


class Ranks:
    """The processes of this node: `start` them, then `wait` for their ends."""

    def __init__(self, first: int, ranks: int) -> None:
        self._first, self._ranks = first, ranks
        self._children: list[subprocess.Popen[bytes]] = []
        self._stopping = False

    def start(self, command: Sequence[str], environments: Sequence[Mapping[str, str]]) -> None:
        """Start a process in each environment; whatever signal this process gets from now on, they get."""
        for number in (*STOP_SIGNALS, signal.SIGUSR1):
            signal.signal(number, self._pass_on)
        for environment in environments:
            if not self._stopping:
                child = subprocess.Popen(command, env=environment, preexec_fn=die_with_this_process())
                self._children.append(child)
        if self._stopping:  # it came while the last one was started, which is told now
            self._signal(signal.SIGTERM)

    def wait(self, told: Path) -> int:
        """The exit code of all together; who died first is written into a file."""
        while True:
            ended = self._ended()
            if bad := {rank: code for rank, code in ended.items() if code != OK}:
                return self._end_all(first_cause(bad), bad, told)
            if len(ended) == len(self._children):
                return REQUEUE if self._stopping and not ended else OK
            time.sleep(_POLL_S)

    def _ended(self) -> dict[int, int]:
        codes = {self._first + at: child.poll() for at, child in enumerate(self._children)}
        # One that was not yet listening has heard the stop all the same.
        heard = {-int(number): REQUEUE for number in STOP_SIGNALS} if self._stopping else {}
        return {rank: heard.get(code, code) for rank, code in codes.items() if code is not None}

    def _end_all(self, rank: int, ended: Mapping[int, int], told: Path) -> int:
        code = ended[rank]
        if code != REQUEUE:
            what = describe_rank_exit(rank, self._ranks, code)
            print(f"{what}; the other processes are ended", file=sys.stderr, flush=True)
            write_json(told, {"rank": rank, "code": code, "what": what})
        until = time.monotonic() + (STOPPED_GRACE_S if code == REQUEUE else GRACE_S)
        self._signal(signal.SIGTERM)
        while len(self._ended()) < len(self._children):
            if time.monotonic() > until:
                self._signal(signal.SIGKILL)
            time.sleep(_POLL_S)
        return 128 - code if code < 0 else code

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._stopping = self._stopping or number in STOP_SIGNALS
        self._signal(number)

    def _signal(self, number: int) -> None:
        for child in self._children:
            child.send_signal(number)  # nothing where it has been waited for


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it ends, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with_this_process() -> Callable[[], None]:
    """What a child calls before it becomes a program (preexec_fn), so that it never outlives this process."""
    parent = os.getpid()

    def prepare() -> None:
        die_with_parent()
        # Slurm's warning reaches children, too, and would end one that does not listen yet; SIGTERM shall.
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def main() -> int:
    """Start what the command line says, and end as it ends."""
    parser = argparse.ArgumentParser(prog="node.ranks")
    for number in ("--nodes", "--node", "--each"):
        parser.add_argument(number, type=int, required=True)
    parser.add_argument("--at", required=True)
    parser.add_argument("--report", type=Path, required=True)
    given, command = parser.parse_known_args()
    environment = dict(os.environ)
    if given.nodes == 1:
        # A name of this machine that nobody resolves would keep gloo's processes apart.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    ranks = Ranks(given.node * given.each, given.nodes * given.each)
    places = [torchrun_variables(given.nodes, given.node, given.each, local, given.at) for local in range(given.each)]
    ranks.start([sys.executable, *command], [environment | place for place in places])
    return ranks.wait(given.report)


if __name__ == "__main__":
    sys.exit(main())
