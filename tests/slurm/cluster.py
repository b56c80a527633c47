"""A real Slurm in one folder, on loopback: two nodes with eight H100s in name, one without a GPU, and accounting.

README.md has what surprises in it, and what Slurm does that whoever submits must bear.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

COMMANDS = (
    *("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd"),
    *("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo", "sacct", "sacctmgr"),
)
PACKAGES = ("slurm-wlm", "slurmdbd", "mariadb-server-core", "munge")
CONF = Path(__file__).with_name("conf")
GPU_NODES = ("gpu1", "gpu2")
NODES = (*GPU_NODES, "cpu1")
GPUS = 8
# Debian keeps the daemons where only root's PATH has them.
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/bin:/sbin:/bin"
# Whoever starts it is Slurm's administrator, runs its nodes and is its only user: it need not be root.
USER = pwd.getpwuid(os.geteuid()).pw_name


def why_not():
    """Why no cluster can be started here, and what to do about it; nothing if one can."""
    missing = [name for name in COMMANDS if shutil.which(name, path=PATH) is None]
    if missing:
        return f"{', '.join(missing)} not found. On Debian: sudo apt-get install {' '.join(PACKAGES)}"
    return None


class ClusterError(Exception):
    """The cluster did not do what was asked of it."""


@dataclass
class Cluster:
    """One Slurm of its own. Everything it writes is in `folder`, which `stop` removes."""

    folder: Path
    accounting: bool = True
    extra: Sequence[str] = ()
    """More lines for slurm.conf. They come last, and the last one counts."""
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, init=False, repr=False)
    _keeper: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)
    _held: list[socket.socket] = field(default_factory=list, init=False, repr=False)
    _owned: bool = field(default=False, init=False, repr=False)
    _answer: str = field(default="", init=False, repr=False)

    def __post_init__(self):
        self.folder = Path(self.folder).resolve()
        # Of its own, as jobs are told by it whose they are: two folders may have the same last part.
        self.name = f"rb{zlib.crc32(bytes(self.folder)):08x}"
        self.conf = self.folder / "slurm.conf"
        self.env = {
            "PATH": PATH,
            "HOME": os.environ.get("HOME", "/"),
            "USER": USER,
            "LANG": "C.UTF-8",
            "SLURM_CONF": str(self.conf),
        }

    # Starting and stopping ----------------------------------------------------------------------------------------

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, error, tb):
        self.stop()

    def start(self):
        """All daemons up and all nodes idle; whatever was started is gone again if that fails."""
        if len(str(self.folder)) > 70:
            raise ClusterError(f"{self.folder}: too long a name for the sockets in it")
        self.folder.mkdir(parents=True, exist_ok=True)
        if any(self.folder.iterdir()):
            raise ClusterError(f"{self.folder} is not empty, and stop would remove it")
        self._owned = True
        try:
            self._write()
            self._start_keeper()
            self.start_daemon("munged")
            if self.accounting:
                self.start_daemon("mariadbd")
                self.start_daemon("slurmdbd")
                self._wait(lambda: self._ok("sacctmgr", "-i", "add", "cluster", self.name), "slurmdbd to answer")
            for name in ("slurmctld", *NODES):
                self.start_daemon(name)
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self):
        """End everything that this cluster started and remove its folder. May be called at any time, and again."""
        # The order matters to slurmdbd alone, which tries for long to reach a database that has gone.
        for group in ((*NODES, "slurmctld", "slurmdbd"), ("mariadbd", "munged")):
            for name in group:
                self._signal(name, signal.SIGTERM)
            for name in group:
                self._ended(name)
        end_processes(self.folder, self.name)
        if self._owned:
            shutil.rmtree(self.folder, ignore_errors=True)
        while self._held:
            self._held.pop().close()
        if self._keeper is not None:
            self._keeper.communicate()
            self._keeper = None

    def wait_until_ready(self, timeout_s=60.0):
        """Until slurmctld answers, every node is up, and accounting (where there is any) answers."""

        def ready():
            self._check_alive()
            states = self.run("sinfo", "-h", "-N", "-o", "%N %t").stdout.splitlines()
            up = {line.split()[0] for line in states if line.split()[1] in ("idle", "mix", "alloc", "comp")}
            return up == set(NODES) and (not self.accounting or self._ok("sacctmgr", "-n", "show", "cluster"))

        self._wait(ready, "all nodes to be up", timeout_s)

    # Daemons ------------------------------------------------------------------------------------------------------

    def start_daemon(self, name):
        """`munged`, `mariadbd`, `slurmdbd`, `slurmctld`, or the slurmd of the node of that name."""
        if name in self.daemons and self.daemons[name].poll() is None:
            raise ClusterError(f"{name} is running already")
        env = self.env | {"MYSQL_UNIX_PORT": str(self.folder / "db.sock")}
        with (self.folder / f"{name}.out").open("ab") as out:
            self.daemons[name] = subprocess.Popen(
                self._command(name),
                cwd=self.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # Ctrl-C in the terminal is for the tests, not for the daemons
            )
        sockets = {"munged": "munge.sock", "mariadbd": "db.sock"}
        if name in sockets:
            self._wait((self.folder / sockets[name]).exists, f"{name} to open its socket")

    def stop_daemon(self, name):
        """Ask it to end, as an administrator would, who does not kill a slurmctld that still saves its state."""
        self._signal(name, signal.SIGTERM)
        self.daemons.pop(name).wait(120)

    def kill_daemon(self, name):
        """As if it crashed. Jobs of a node live on without its slurmd."""
        self._signal(name, signal.SIGKILL)
        self._ended(name)

    def kill_node(self, name):
        """As if the machine lost its power: slurmd and all processes of its jobs are gone, and slurmctld knows.

        Left to itself slurmctld would notice within 20 s. `start_daemon` brings the node back.
        """
        self.kill_daemon(name)
        end_processes(self.folder, self.name, name)
        self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=no power")

    # Using it -----------------------------------------------------------------------------------------------------

    def run(self, *argv, timeout_s=60.0):
        """A command in the cluster's environment; whether it failed is for the caller to see."""
        return subprocess.run(
            argv, env=self.env, cwd=self.folder, capture_output=True, text=True, check=False, timeout=timeout_s
        )

    def jobs(self, name=None):
        """The jobs in the queue: id, state, partition, reason, nodes, name."""
        keys = ("id", "state", "partition", "reason", "nodes", "name")
        asked = ["squeue", "-h", "-a", "-o", "%i\x1f%T\x1f%P\x1f%r\x1f%N\x1f%j", *(["-n", name] if name else [])]
        answer = self.run(*asked)
        for _ in range(2):
            if "timed out" in answer.stderr:  # MessageTimeout is short here, and the machine may be busy
                answer = self.run(*asked)
        if answer.returncode != 0:
            raise ClusterError(f"squeue: {answer.stderr.strip()}")
        return [dict(zip(keys, line.split("\x1f"), strict=True)) for line in answer.stdout.splitlines()]

    def release(self, job_id, timeout_s=20.0):
        """Let a requeued job start now; Slurm would have it wait for two minutes."""
        # While its first go is being ended the new time would be written over.
        self._wait(
            lambda: any(job["id"] == str(job_id) and job["state"] in ("PENDING", "RUNNING") for job in self.jobs()),
            f"job {job_id} to be requeued",
            timeout_s,
        )
        # A start in the second of the last end is refused ("credential revoked"), and the job has FAILED.
        time.sleep(1.1)
        if (answer := self.run("scontrol", "update", f"jobid={job_id}", "StartTime=now")).returncode != 0:
            raise ClusterError(f"job {job_id} cannot be released: {answer.stderr.strip()}")

    def reset(self, timeout_s=60.0):
        """As new: every daemon up, no job in the queue, every node idle."""
        for name in ("munged", *(("mariadbd", "slurmdbd") if self.accounting else ()), "slurmctld", *NODES):
            if name not in self.daemons or self.daemons[name].poll() is not None:
                self.start_daemon(name)
        self._wait(lambda: self._ok("scancel", f"--user={USER}"), "scancel", timeout_s)
        was = ("PartitionName=h100", "GraceTime=0", "PreemptMode=REQUEUE")  # as conf/slurm.conf has them
        self._wait(lambda: self._ok("scontrol", "update", *was), "the partition", timeout_s)
        self._wait(lambda: not self.jobs(), "the queue to be empty", timeout_s)

        def idle():
            states = dict(line.split() for line in self.run("sinfo", "-h", "-N", "-o", "%N %t").stdout.splitlines())
            for name, state in states.items():
                if state.startswith(("down", "drain", "fail")):
                    self.run("scontrol", "update", f"nodename={name}", "state=resume")
            return states == dict.fromkeys(NODES, "idle")

        self._wait(idle, "all nodes to be idle", timeout_s)

    # The inside ---------------------------------------------------------------------------------------------------

    def _command(self, name):
        folder = self.folder
        if name == "munged":
            files = {"socket": "munge.sock", "key-file": "munge.key", "pid-file": "munged.pid"}
            files |= {"log-file": "munged.log", "seed-file": "munged.seed"}
            # Forced, because munged looks askance at the owners and modes of the folders above.
            return ["munged", "--foreground", "--force", *(f"--{key}={folder / file}" for key, file in files.items())]
        if name == "mariadbd":
            return ["mariadbd", f"--defaults-file={folder / 'my.cnf'}"]
        if name in ("slurmdbd", "slurmctld"):
            return [name, "-D"]
        return ["slurmd", "-D", "-N", name]

    def _signal(self, name, number):
        if name in self.daemons and self.daemons[name].poll() is None:
            self.daemons[name].send_signal(number)

    def _ended(self, name, timeout_s=5.0):
        daemon = self.daemons.get(name)
        if daemon is None:
            return
        try:
            daemon.wait(timeout_s)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        del self.daemons[name]

    def _start_keeper(self):
        """It clears up should this process be killed: a pipe tells it, and no signal meant for others reaches it."""
        command = [sys.executable, "-I", "-S", __file__, str(self.folder), self.name]
        self._keeper = subprocess.Popen(command, cwd="/", env={}, stdin=subprocess.PIPE, start_new_session=True)

    def _ok(self, *argv):
        answer = self.run(*argv)
        self._answer = f"{' '.join(argv)}: {answer.stdout}{answer.stderr}"
        return answer.returncode == 0

    def _check_alive(self):
        for name, daemon in self.daemons.items():
            if (status := daemon.poll()) is not None:
                raise ClusterError(f"{name} ended with {status}:\n{self._log(name)}")

    def _log(self, name):
        text = ""
        for file in (self.folder / f"{name}.out", self.folder / f"{name}.log"):
            if file.is_file():
                text += file.read_text(errors="replace")[-2000:]
        return text

    def _wait(self, until, what, timeout_s=30.0):
        end = time.monotonic() + timeout_s
        while not until():
            self._check_alive()
            if time.monotonic() > end:
                logs = "\n".join(f"--- {name}\n{self._log(name)}" for name in self.daemons)
                raise ClusterError(f"waited {timeout_s:g} s for {what}\n{self._answer}\n{logs}")
            time.sleep(0.05)

    def _write(self):
        """The folder's files: those of conf/, with this cluster's names, ports and settings."""
        for name in ("state", "db", *NODES):
            (self.folder / name).mkdir(mode=0o700)
        for number in range(GPUS):
            (self.folder / f"nvidia{number}").symlink_to("/dev/null")
        (self.folder / "munge.key").touch(mode=0o600)
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        self._held = reserve_ports(2 + len(NODES))
        ports = (held.getsockname()[1] for held in self._held)
        values = dict(zip(("slurmctld", "slurmdbd", *NODES), ports, strict=True))
        values |= {"name": self.name, "folder": self.folder, "user": USER, "host": socket.gethostname().split(".")[0]}
        values |= {"gpus": GPUS, "last_gpu": GPUS - 1}
        listen = kept_to_loopback()
        values["listen"] = "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny" if listen else ""
        values["dbd_listen"] = "CommunicationParameters=NoInAddrAny" if listen else ""
        values["extra"] = "\n".join(self.extra)

        def text_of(file):
            return Template((CONF / file).read_text()).substitute(values)

        none = "AccountingStorageType=accounting_storage/none"
        values["accounting"] = text_of("accounting.conf") if self.accounting else none
        for file in ("slurm.conf", "slurmdbd.conf", "my.cnf", "gres.conf", "cgroup.conf"):
            (self.folder / file).touch(mode=0o600)
            (self.folder / file).write_text(text_of(file))


def kept_to_loopback():
    """Slurm listens on every interface, or else where the host's name leads; srun hangs if that is 127.0.1.1."""
    with contextlib.suppress(OSError):
        return socket.gethostbyname(socket.gethostname()) == "127.0.0.1"
    return False


def reserve_ports(count):
    """TCP ports for the daemons, as UDP sockets of the same numbers, which keep other clusters off them until closed.

    Below those that the kernel hands out to clients, and those that trainers choose (`free_port`), so that a daemon
    finds its port free, and free again at a restart.
    """
    held = []
    while len(held) < count:
        ours = socket.socket(type=socket.SOCK_DGRAM)
        try:
            ours.bind(("", random.randrange(12000, 16000)))
            with socket.socket() as trial:
                trial.bind(ours.getsockname())
            held.append(ours)
        except OSError:
            ours.close()
    return held


def processes(folder, name, node=None):
    """The processes of a cluster and their descendants; with `node`, those of the jobs on that node.

    They are told by their environment; slurmstepd, which writes its title over that, by the log that it holds open.
    """
    marks = {f"SLURM_CONF={folder}/slurm.conf".encode(), f"SLURM_CLUSTER_NAME={name}".encode()}
    logs = {folder / f"{one}.log" for one in ([node] if node else NODES)}
    children = {}
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            pid = int(entry.name)
            comm, _, rest = (entry / "stat").read_text().rpartition(")")
            children.setdefault(int(rest.split()[1]), []).append(pid)
            if comm.endswith("(slurmstepd"):
                for fd in (entry / "fd").iterdir():
                    with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                        if fd.readlink() in logs:
                            found.add(pid)
            elif node is None and not marks.isdisjoint((entry / "environ").read_bytes().split(b"\0")):
                found.add(pid)
        except OSError:
            continue
    below = list(found)
    while below:
        new = [child for child in children.get(below.pop(), ()) if child not in found]
        found.update(new)
        below += new
    return found - {os.getpid()}


def end_processes(folder, name, node=None):
    """Kill those `processes`, until there are none.

    All are stopped first: a slurmstepd that lives on for a moment tells slurmctld that its job was killed.
    """
    while found := processes(folder, name, node):
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        time.sleep(0.02)


def keep(folder, name):
    """Wait until the owner closes the pipe or dies, and remove what is left of the cluster."""
    sys.stdin.read()
    end_processes(folder, name)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), sys.argv[2])
