"""Starts a node's processes of a trainer with torchrun's variables; when one fails, ends the others.

    python -m node.ranks --nodes 2 --node 0 --each 8 --at 10.0.0.1:29400 --report FILE -m MODULE ATTEMPT

runs `python -m MODULE ATTEMPT` once for each GPU. It exits with their code (node/exit_codes.py), 128 + the
signal that killed one, or 1. FILE names the process that failed first.

torch's torchrun always exits with 1, also after a stop signal (torch 2.13, torch/distributed/launcher/api.py), so 2 and
75 would be lost. It also kills its processes 30 s after a stop signal by default (torch/distributed/run.py).
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
from contextlib import suppress
from pathlib import Path
from types import FrameType

from common.errors import UserError
from common.files import write_json
from common.retry import READ_PATIENCE_S, retry_io
from node.exit_codes import OK, REQUEUE, STOP_SIGNALS, UNFIT_NODE, USER_ERROR

GRACE_S = 10.0
"""Time for the other processes to log, after one failed."""
STOPPED_GRACE_S = 60.0
"""Time for the other processes to end, after one stopped on request and saved its checkpoint."""
SHARE = "ROLLOUTBENCH_SHARE"
"""The CPU shares of a node's processes beside an engine server: first share, number of shares, total shares."""
_POLL_S = 0.1
_PR_SET_PDEATHSIG = 1


def world_size() -> int:
    """The number of training processes."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> tuple[int, int]:
    """This process's number on its node, and the number of processes there."""
    return int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def cpu_share() -> tuple[int, int, int]:
    """This process's share of its node's CPUs: first share, number of shares, total shares."""
    local, of_node = local_rank()
    first, width, parts = map(int, os.environ.get(SHARE, f"0,{of_node},{of_node}").split(","))
    return first + local * (width // of_node), width // of_node, parts


def torchrun_variables(nodes: int, node: int, each: int, local: int, at: str) -> dict[str, str]:
    """torchrun's variables for a node's `local`-th process; `at` is the rendezvous address."""
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
    """The rank whose exit explains the others, of processes that ended at the same time: rank -> exit code."""
    return min(
        ended,
        key=lambda rank: (ended[rank] == REQUEUE, ended[rank] >= 0, ended[rank] not in (USER_ERROR, UNFIT_NODE), rank),
    )


def describe_exit(code: int) -> str:
    """A process's exit code as text."""
    names = {int(number): number.name for number in signal.Signals}
    return f"was killed by {names.get(-code, -code)}" if code < 0 else f"ended with exit code {code}"


class Ranks:
    """The processes of this node."""

    def __init__(self, first: int, ranks: int) -> None:
        self._first, self._ranks = first, ranks
        self._children: list[subprocess.Popen[bytes]] = []
        self._stopping = False

    def start(self, command: Sequence[str], environments: Sequence[Mapping[str, str]]) -> None:
        """Start a process in each environment; from now on signals are passed on to them."""
        for number in (*STOP_SIGNALS, signal.SIGUSR1):
            signal.signal(number, self._pass_on)
        for environment in environments:
            if not self._stopping:
                child = subprocess.Popen(command, env=environment, preexec_fn=die_with_this_process())
                self._children.append(child)
        if self._stopping:  # the signal came while the last process started
            self._signal(signal.SIGTERM)

    def wait(self, report: Path) -> int:
        """Wait for all processes; returns the common exit code and reports the first failure in a file."""
        while True:
            ended = self._ended()
            if bad := {rank: code for rank, code in ended.items() if code != OK}:
                return self._end_all(first_cause(bad), bad, report)
            if len(ended) == len(self._children):
                return REQUEUE if self._stopping and not ended else OK
            time.sleep(_POLL_S)

    def _ended(self) -> dict[int, int]:
        codes = {self._first + at: child.poll() for at, child in enumerate(self._children)}
        # A process without handlers yet is killed by the stop signal, which counts as a stop.
        stopped = {-int(number): REQUEUE for number in STOP_SIGNALS} if self._stopping else {}
        return {rank: stopped.get(code, code) for rank, code in codes.items() if code is not None}

    def _end_all(self, rank: int, ended: Mapping[int, int], report: Path) -> int:
        code = ended[rank]
        if code != REQUEUE:
            host = os.environ.get("SLURMD_NODENAME") or platform.node()
            what = f"rank {rank} of {self._ranks} on {host} {describe_exit(code)}"
            print(f"{what}; the other processes are ended", file=sys.stderr, flush=True)
            found = {"rank": rank, "code": code, "what": what}
            with suppress(OSError, UserError):  # the exit code counts without the report, too
                retry_io(lambda: write_json(report, found), "the attempt's files", READ_PATIENCE_S)
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
            child.send_signal(number)  # does nothing after the process ended


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends for any reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with_this_process() -> Callable[[], None]:
    """A preexec_fn for a child, so that it never outlives this process."""
    parent = os.getpid()

    def prepare() -> None:
        die_with_parent()
        # Slurm's warning signal also reaches children and would kill one without a handler; only SIGTERM should.
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def main() -> int:
    """Start the processes of the command line; returns their exit code."""
    parser = argparse.ArgumentParser(prog="node.ranks")
    for number in ("--nodes", "--node", "--each"):
        parser.add_argument(number, type=int, required=True)
    parser.add_argument("--at", required=True)
    parser.add_argument("--report", type=Path, required=True)
    options, command = parser.parse_known_args()
    environment = dict(os.environ)
    if options.nodes == 1:
        # gloo cannot connect if this machine's name does not resolve.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    nodes, node, each = options.nodes, options.node, options.each
    ranks = Ranks(node * each, nodes * each)
    places = [torchrun_variables(nodes, node, each, local, options.at) for local in range(each)]
    ranks.start([sys.executable, *command], [environment | place for place in places])
    return ranks.wait(options.report)


if __name__ == "__main__":
    sys.exit(main())
