"""Starts and ends one Ray cluster on the nodes of a Slurm job.

Each node has one task of the job, a process of the controller. Rank 0 starts Ray's head, the others join it; they find
each other through a folder on the shared file system that belongs to one life of the job. There each task keeps a file
(`head.json`, `rank-<r>.json`) that says how it is, and writes it anew every few seconds: who falls silent is dead. How
long somebody has been silent is measured by the listener's clock, and only while it listens: clocks differ between
nodes, and a job that Slurm suspends for an hour wakes up unharmed.

What Ray does, as seen with 2.60 and 2.48 and read in their source:

- It reads no variable of Slurm's, so CPUs and GPUs are told to it. GPUs are numbers to it: more of them than the
  machine has are all right, but not more than CUDA_VISIBLE_DEVICES lists.
- Actors and tasks inherit the environment and the folder of their node's `ray start`, not the driver's.
- Fixed ports are the head's (6379), the workers' (10002 to 19999), the dashboard's agent's (52365), the metrics' (44217
  and 44227) and, where grpcio is installed, the client server's (10001). 0 lets Ray's processes choose while they bind,
  which cannot collide with another job's; only the client server refuses it, and takes the whole node down with it
  when its port is taken.
- `ray start` listens on all interfaces, even if it is told 127.0.0.1, and whoever reaches a port runs code as us. From
  2.52 on a token is asked for (RAY_AUTH_MODE); older releases ignore it.
- `ray stop` ends every Ray of the user's on the node, and `ray.init("auto")` may join a foreign one.
- `ray start --block` ends within two seconds of its raylet or gcs_server; both die with it, even by SIGKILL. The agents
  may stay for a minute if the head's node is killed. SIGTERM makes newer releases wait up to 30 s for the actors.
- Slurm's SIGTERM to a whole step (scancel, preemption) reaches Ray, too, and ends it while the trainer still writes its
  checkpoint. Only SIGUSR2 can be kept away: with SIGTERM blocked, what actors start could not be terminated.
- Workers and agents write their names (`ray::IDLE`) over their environment in /proc, and have process groups of their
  own; but they stay in the session of their `ray start`.
- It makes its temporary folder writable for everybody (0777), so it gets one within a private one. Up to 2.48 at least
  a node that joins uses the path of the head's instead of its own.
- The object store's memory is an unlinked file in /dev/shm: SIGKILL leaves nothing behind. Unless told otherwise it may
  take 30% of the machine's memory, whatever Slurm granted.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workflow.cluster.place import free_port, machine_id, own_ip, source_ip, unreachable
from workflow.cluster.processes import LIFE_VARIABLE, end_processes_of, start_in_session
from workflow.cluster.ray_folder import PrivateFolder, write_secret
from workflow.cluster.rendezvous import Other, RendezvousError, Task, TaskSetup, others_of

TRIES = 3  # a port that was free may be taken when it is used
SMALLEST_STORE = 80_000_000  # Ray refuses less
# A Ray that the user has elsewhere must not be taken for ours.
_FOREIGN_VARIABLES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_REDIS_ADDRESS", "RAY_TMPDIR")


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySetup(TaskSetup):
    """What a task needs to know to take part in the cluster; `python` has Ray."""

    object_store_bytes: int | None = None
    """None: 30% of what Slurm granted or, when that is unknown, whatever Ray takes."""


class _Member(Task):
    """What the head and the others share: a node's Ray, the task's own file and those of others."""

    def __init__(self, setup: RaySetup, file: str) -> None:
        super().__init__(setup, file)
        self.address = ""
        self._setup = setup
        self._process: subprocess.Popen[bytes] | None = None
        self._sessions: set[int] = set()
        self._temporary: list[PrivateFolder] = []
        self._borrowed: Path | None = None
        self._closed = False

    def environment(self) -> dict[str, str]:
        """What a process on this node needs beside its own to find the cluster, and to be found by `close`."""
        return {**self._common_environment(), "RAY_ADDRESS": self.address}

    def close(self) -> None:
        """End what this task has started on this node, whatever its state; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._sign.tell("ended")
        if self._died():
            self._keep_logs()
        end_processes_of(self._setup.token, sessions=self._sessions)
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        for folder in self._temporary:
            folder.remove()
        if self._borrowed is not None:
            shutil.rmtree(self._borrowed, ignore_errors=True)

    def _start(self, arguments: Callable[[], list[str]], is_up: Callable[[], bool]) -> None:
        """Start this node's Ray and wait until it is up; try again when it ends instead."""
        code = None
        for _ in range(TRIES):
            self._temporary.append(PrivateFolder(self._setup.environment))
            self._process = self._spawn(arguments())
            self._sessions.add(self._process.pid)
            while (code := self._process.poll()) is None:
                if is_up():
                    return
                self._pause(f"Ray was not up on {self._own_name()} after {self._setup.deadline_s:.0f} s")
            self._keep_logs()
            end_processes_of(self._setup.token, grace_s=0, sessions=self._sessions)
        raise RendezvousError(self._ended(code))

    def _spawn(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        setup = self._setup
        command = [str(setup.python), "-m", "ray.scripts.scripts", "start", "--block", "--log-color=false", *arguments]
        command += [f"--temp-dir={self._temporary[-1].ray}", *self._resources()]
        command += ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
        command += ["--node-manager-port=0", "--object-manager-port=0"]
        environment = {name: value for name, value in setup.environment.items() if name not in _FOREIGN_VARIABLES}
        environment |= self._common_environment()
        environment |= {"RAY_ADDRESS": self.address} if self.address else {}
        return start_in_session(command, cwd=setup.cwd, env=environment, token=setup.token, log=setup.log)

    def _resources(self) -> list[str]:
        place = self._setup.place
        resources = [f"--num-cpus={place.cpus}", f"--num-gpus={place.gpus}"]
        store = self._setup.object_store_bytes
        if store is None and place.memory_bytes is not None:
            shared = os.statvfs("/dev/shm")
            store = int(min(0.3 * place.memory_bytes, 0.9 * shared.f_bavail * shared.f_frsize))
            store = max(store, SMALLEST_STORE)
        return resources if store is None else [*resources, f"--object-store-memory={store}"]

    def _common_environment(self) -> dict[str, str]:
        return {
            LIFE_VARIABLE: self._setup.token,
            "PYTHONUNBUFFERED": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
            # Ray's own is 15: on a shared node its workers would wait for all others, as TRL's processes do not.
            "RAY_worker_niceness": self._setup.environment.get("RAY_worker_niceness", "0"),
            "AUTOSCALER_METRIC_PORT": "0",
            "DASHBOARD_METRIC_PORT": "0",
            "RAY_AUTH_MODE": self._setup.environment.get("RAY_AUTH_MODE", "token"),
            "RAY_AUTH_TOKEN_PATH": str(self._setup.folder.absolute() / "secret"),
            # `ray.init("auto")`, which some libraries call, looks here before it looks at other people's processes.
            "RAY_TMPDIR": str(self._temporary[-1].ray),
        }

    def _died(self) -> str | None:
        """A sentence when this node's Ray is gone."""
        code = None if self._process is None else self._process.poll()
        return None if code is None else self._ended(code)

    def _keep_logs(self) -> None:
        """Save the last words of Ray's processes before their folder is removed."""
        with suppress(OSError), self._setup.log.open("ab") as log:
            for path in sorted(self._temporary[-1].ray.glob("session_latest/logs/*")):
                if path.stem in ("gcs_server", "raylet") and (size := path.stat().st_size):
                    with path.open("rb") as file:
                        file.seek(max(0, size - 4096))
                        log.write(f"\n--- the end of {path.name}\n".encode() + file.read(4096))

    def _ended(self, code: int | None) -> str:
        return f"Ray ended on {self._own_name()} (exit {code}; see {self._setup.log})"


class RayHead(_Member):
    """Rank 0's part: `start`, then `wait_for_nodes`, then `poll` once a second, all within `with`."""

    def __init__(self, setup: RaySetup) -> None:
        super().__init__(setup, "head.json")
        self._others = others_of(setup)

    def start(self) -> None:
        """Start Ray's head on this node and tell the others where it is."""
        with self._telling_failure("Ray"):
            write_secret(self._setup.folder / "secret")
            has_client = _has_grpcio(self._setup.python)
            self._start(lambda: self._arguments(has_client), self._find_address)
        self._sign.tell("up", address=self.address, machine=machine_id(), temporary=str(self._temporary[-1].folder))

    def wait_for_nodes(self) -> None:
        """Return when all ranks have joined; a `RendezvousError` when one fails or the time is up."""
        while missing := [other.name for other in self._others if other.look().get("state") != "joined"]:
            if (died := self.poll()) is not None:
                raise RendezvousError(died)
            self._pause(
                f"after {self._setup.deadline_s:.0f} s the Ray cluster still lacks {len(missing)} of "
                f"{self._setup.place.nodes} nodes: {', '.join(missing)}"
            )

    def poll(self) -> str | None:
        """None while all is well; else a sentence that says what died. To be called about once a second."""
        self._sign.beat()
        return self._died() or next(filter(None, (other.trouble() for other in self._others)), None)

    def command(self, trainer: list[str]) -> list[str]:
        """The trainer itself, which joins the cluster."""
        return trainer

    def culprit(self, code: int) -> tuple[str, int | None]:
        """The trainer, which is one process."""
        return "", code

    def close(self) -> None:
        super().close()
        if self._process is not None:  # else the secret may be another's
            with suppress(OSError):
                (self._setup.folder / "secret").unlink(missing_ok=True)

    def _arguments(self, has_client: bool) -> list[str]:
        arguments = ["--head", "--port=0", "--include-dashboard=false"]
        arguments += [f"--ray-client-server-port={free_port()}"] if has_client else []
        return [*arguments, f"--node-ip-address={own_ip(self._setup.place)}"]

    def _find_address(self) -> bool:
        file = self._temporary[-1].ray / "ray_current_cluster"
        found = re.fullmatch(r"\S+:\d+", file.read_text().strip()) if file.is_file() else None
        self.address = found[0] if found else ""
        return found is not None


class RayWorker(_Member):
    """The part of every other rank: `join`, then `poll` once a second until `over`, all within `with`."""

    def __init__(self, setup: RaySetup) -> None:
        super().__init__(setup, f"rank-{setup.place.rank}.json")
        self._head = Other(setup.folder / "head.json", setup.place.name(0), setup.stale_s)
        self.over = False
        """Rank 0 has ended the life: there is nothing left to do."""

    def join(self) -> None:
        """Wait for the head and add this node to its cluster."""
        with self._telling_failure("Ray"):
            self._join()
        self._sign.tell("joined")

    def poll(self) -> str | None:
        """None while all is well or rank 0 has ended the life (`over`); else a sentence that says what died."""
        self._sign.beat()
        self.over = self._head.look().get("state") == "ended"
        if self.over:
            return None
        died = self._died()
        if died is not None:
            self._sign.tell("failed", error=died)
        return died or self._head.trouble()

    def _join(self) -> None:
        name = self._setup.place.name(0)
        head = self._await_head(self._head)
        ip, _, port = head["address"].rpartition(":")
        while (why := unreachable(ip, int(port))) is not None:
            if (trouble := self._head.trouble()) is not None:
                raise RendezvousError(trouble)
            self._pause(f"{self._own_name()} cannot reach {name} at {head['address']}: {why}")
        if head["machine"] != machine_id():
            # Older releases work there on this node, too, and would make it readable for everybody.
            self._borrowed = Path(head["temporary"])
            with suppress(OSError):
                self._borrowed.mkdir(mode=0o700)
        self.address = head["address"]
        arguments = [f"--address={self.address}", f"--node-ip-address={source_ip(ip) or ip}"]
        before = self._setup.log.stat().st_size if self._setup.log.exists() else 0
        self._start(lambda: arguments, lambda: self._is_up(before))

    def _is_up(self, before: int) -> bool:
        with self._setup.log.open("rb") as log:
            log.seek(before)
            return b"Ray runtime started" in log.read()


def _has_grpcio(python: Path) -> bool:
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('grpc') is None)"
    return subprocess.run([python, "-I", "-c", find], stdin=subprocess.DEVNULL, check=False).returncode == 0
