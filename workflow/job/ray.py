"""Starts and ends one Ray cluster on the nodes of a Slurm job.

Each node has one task of the job, a process of the controller. Rank 0 starts Ray's head and the others join it. They
find each other through a folder on the shared file system that belongs to one life of the job. Each task keeps a status
file there (`head.json`, `rank-<r>.json`) and rewrites it every few seconds; a task that stops writing is dead. The
reader measures that silence with its own clock, and only while it reads: clocks differ between nodes, and a job that
Slurm suspends for an hour resumes unharmed.

What Ray does, as seen with 2.60 and 2.48 and read in their source:

- It reads no variable of Slurm's, so CPUs and GPUs are passed to it. It accepts more GPUs than the machine has, but not
  more than CUDA_VISIBLE_DEVICES lists.
- Actors and tasks inherit the environment and the folder of their node's `ray start`, not the driver's.
- Fixed ports are the head's (6379), the workers' (10002 to 19999), the dashboard's agent's (52365), the metrics' (44217
  and 44227) and, where grpcio is installed, the client server's (10001). 0 lets Ray's processes choose while they bind,
  which cannot collide with another job's. Only the client server refuses 0, and ends the whole node if its port is
  taken.
- `ray start` listens on all interfaces, even if told 127.0.0.1, and whoever reaches a port runs code as this user. From
  2.52 on a token is required (RAY_AUTH_MODE); older releases ignore it. RAY_USE_TLS of 2.46 guards only gRPC: the HTTP
  servers of the dashboard's and the runtime environments' agents run commands for everybody all the same.
- `ray stop` ends every Ray of the user on the node, and `ray.init("auto")` may join a foreign one.
- `ray start --block` ends within two seconds of its raylet or gcs_server; both die with it, even by SIGKILL. The agents
  may stay for a minute if the head's node is killed. SIGTERM makes newer releases wait up to 30 s for the actors.
- Slurm's SIGTERM to a whole step (scancel, preemption) reaches Ray, too, and ends it while the trainer still writes its
  checkpoint. Only SIGUSR2 can be kept away: with SIGTERM blocked, what actors start could not be terminated.
- Workers and agents write their names (`ray::IDLE`) over their environment in /proc, and have process groups of their
  own; but they stay in the session of their `ray start`.
- It makes its temporary folder writable for everybody (0777), so it gets one within a private one. Up to 2.48 at least
  a node that joins uses the path of the head's instead of its own.
- The object store's memory is an unlinked file in /dev/shm: SIGKILL leaves nothing behind. By default it may take 30%
  of the machine's memory, whatever Slurm granted.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from common.retry import READ_PATIENCE_S, exists, retry_io
from node.hardware import free_port
from workflow.job.place import machine_id, own_ip, source_ip, unreachable
from workflow.job.processes import GRACE_S, end_processes, start_in_session
from workflow.job.rendezvous import HeadTask, RendezvousError, Task, TaskSetup, WorkerTask
from workflow.runs.history import FILES

TRIES = 3  # a free port may be taken before Ray binds it
SMALLEST_STORE = 80_000_000  # Ray's own minimum
# Ray appends `/session_<date>_<time>_<microseconds>_<pid>/sockets/plasma_store`; a socket's path has 107 bytes.
LONGEST_TEMPORARY = 107 - len("/session_2000-01-01_00-00-00_000000_4194304/sockets/plasma_store.99")
# These would connect to another Ray of the user.
_FOREIGN_VARIABLES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_REDIS_ADDRESS", "RAY_TMPDIR")


def private_folder(env: Mapping[str, str]) -> Path:
    """A new private folder on this node whose path is short enough for Ray's sockets; Ray opens the one in it to all.

    A killed task leaves its folder to whatever clears the job's temporary folder, or /tmp.
    """
    prefix = f"rb{os.getuid()}-"
    for candidate in (env.get("SLURM_TMPDIR"), env.get("TMPDIR")):
        if candidate and os.access(candidate, os.W_OK | os.X_OK):
            base = Path(candidate).absolute()
            if len(os.fsencode(base / f"{prefix}12345678" / "r")) <= LONGEST_TEMPORARY:
                return Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    return Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))


class _RayNode(Task):
    """One node's Ray; `python` of the setup has Ray installed."""

    def __init__(self, setup: TaskSetup) -> None:
        super().__init__(setup)
        self.address = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._temporary: list[Path] = []
        self._borrowed: Path | None = None
        self._closed = False

    def environment(self) -> dict[str, str]:
        """The variables by which a process on this node finds the cluster."""
        return {**self._common_environment(), "RAY_ADDRESS": self.address}

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        super().close()
        if self._local_problem():
            self._keep_logs()
        end_processes(self._process, grace_s=GRACE_S)
        for folder in filter(None, (*self._temporary, self._borrowed)):
            shutil.rmtree(folder, ignore_errors=True)

    def _start(self, arguments: Callable[[], list[str]], is_up: Callable[[], bool]) -> None:
        """Start this node's Ray and wait until it is up; try again if it ends instead."""
        code = None
        for _ in range(TRIES):
            self._temporary.append(private_folder(self._setup.environment))
            self._process = self._spawn(arguments())
            while (code := self._process.poll()) is None:
                if is_up():
                    return
                self._pause(f"Ray was not up on {self._own_name()} after {self._setup.deadline_s:.0f} s")
            self._keep_logs()
            end_processes(self._process)
        raise RendezvousError(self._end_sentence(code))

    def _spawn(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        setup = self._setup
        command = [str(setup.python), "-m", "ray.scripts.scripts", "start", "--block", "--log-color=false", *arguments]
        command += [f"--temp-dir={self._temporary[-1] / 'r'}", *self._resources()]
        command += ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
        command += ["--node-manager-port=0", "--object-manager-port=0"]
        environment = {name: value for name, value in setup.environment.items() if name not in _FOREIGN_VARIABLES}
        environment |= self._common_environment()
        environment |= {"RAY_ADDRESS": self.address} if self.address else {}
        return start_in_session(command, cwd=setup.cwd, env=environment, log=setup.log)

    def _resources(self) -> list[str]:
        """CPUs, GPUs and, where Slurm limits memory, 30% of it for the object store."""
        place = self._setup.place
        resources = [f"--num-cpus={place.cpus}", f"--num-gpus={place.gpus}"]
        if place.memory_bytes is None:
            return resources
        shared = os.statvfs("/dev/shm")
        store = int(min(0.3 * place.memory_bytes, 0.9 * shared.f_bavail * shared.f_frsize))
        return [*resources, f"--object-store-memory={max(store, SMALLEST_STORE)}"]

    def _common_environment(self) -> dict[str, str]:
        return {
            "PYTHONUNBUFFERED": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
            # Ray's own is 15: on a shared node its workers would wait for all others, as TRL's processes do not.
            "RAY_worker_niceness": self._setup.environment.get("RAY_worker_niceness", "0"),
            "AUTOSCALER_METRIC_PORT": "0",
            "DASHBOARD_METRIC_PORT": "0",
            "RAY_AUTH_MODE": self._setup.environment.get("RAY_AUTH_MODE", "token"),
            "RAY_AUTH_TOKEN_PATH": str(self._secret_file.absolute()),
            # `ray.init("auto")`, which some libraries call, looks here first and only then at foreign processes.
            "RAY_TMPDIR": str(self._temporary[-1] / "r"),
        }

    def _local_problem(self) -> str | None:
        code = None if self._process is None else self._process.poll()
        return None if code is None else self._end_sentence(code)

    def _keep_logs(self) -> None:
        with suppress(OSError), self._setup.log.open("ab") as log:
            for path in sorted((self._temporary[-1] / "r").glob("session_latest/logs/*")):
                if path.stem in ("gcs_server", "raylet") and (size := path.stat().st_size):
                    with path.open("rb") as file:
                        file.seek(max(0, size - 4096))
                        log.write(f"\n--- the end of {path.name}\n".encode() + file.read(4096))

    def _end_sentence(self, code: int | None) -> str:
        return f"Ray ended on {self._own_name()} (exit {code}; see {self._setup.log})"


class RayHead(_RayNode, HeadTask):
    def start(self) -> None:
        with self._reporting_failure("Ray"):
            self._write_secret()
            has_client = _has_grpcio(self._setup.python)
            self._start(lambda: self._arguments(has_client), self._find_address)
        self._status.set("up", address=self.address, machine=machine_id(), temporary=str(self._temporary[-1]))

    def close(self) -> None:
        super().close()
        self._remove_secret()

    def _arguments(self, has_client: bool) -> list[str]:
        arguments = ["--head", "--port=0", "--include-dashboard=false"]
        arguments += [f"--ray-client-server-port={free_port()}"] if has_client else []
        return [*arguments, f"--node-ip-address={own_ip(self._setup.place)}"]

    def _find_address(self) -> bool:
        file = self._temporary[-1] / "r" / "ray_current_cluster"
        found = re.fullmatch(r"\S+:\d+", file.read_text().strip()) if file.is_file() else None
        self.address = found[0] if found else ""
        return found is not None


class RayWorker(_RayNode, WorkerTask):
    def join(self) -> None:
        with self._reporting_failure("Ray"):
            self._join()
        self._status.set("joined")

    def _failure(self) -> dict[str, str] | None:
        problem = self._local_problem()
        return None if problem is None else {"error": problem}

    def _join(self) -> None:
        head = self._await_head()
        ip, _, port = head["address"].rpartition(":")
        while (why := unreachable(ip, int(port))) is not None:
            self._head.raise_problem()
            self._pause(f"{self._own_name()} cannot reach {self._head.name} at {head['address']}: {why}")
        if head["machine"] != machine_id():
            # Older releases use that path on this node, too, and would make it readable for everybody.
            self._borrowed = Path(head["temporary"])
            with suppress(OSError):
                self._borrowed.mkdir(mode=0o700)
        self.address = head["address"]
        arguments = [f"--address={self.address}", f"--node-ip-address={source_ip(ip) or ip}"]
        log = self._setup.log
        before = retry_io(lambda: log.stat().st_size if exists(log) else 0, FILES, READ_PATIENCE_S)
        self._start(lambda: arguments, lambda: self._is_up(before))

    def _is_up(self, before: int) -> bool:
        with suppress(OSError), self._setup.log.open("rb") as log:
            log.seek(before)
            return b"Ray runtime started" in log.read()
        return False


def _has_grpcio(python: Path) -> bool:
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('grpc') is None)"
    return subprocess.run([python, "-I", "-c", find], stdin=subprocess.DEVNULL, check=False).returncode == 0
