"""What a storm does to a cluster and to the heads on it, and how an administrator undoes it.

Every strike is undone later. An undo may itself meet a controller that is down: `administer` does again whatever the
cluster still shows as undone, so that no strike outlives the storm.
"""

import contextlib
import os
import random
import shlex
import signal
import time
from collections import Counter

from .cluster import GPU_NODES, NODES, ClusterError
from .runs import fake

# Whole names: a part of one would hit this project's own modules while a head loads them (`stopping.py`).
PARTS = ("/stop", "/end.json", "/life.json", "/heartbeat", "/done.json", "/order.json", "/.squeue.json")
LIES = {
    "squeue": ("true", '"$real" "$@" | head -n 1', '"$real" "$@" | head -c 200', "echo CLUSTER: b", "exit 1"),
    "sacct": ("true", "exit 1", '"$real" "$@" | head -n 1'),
    "sbatch": ('sleep 6; exec "$real" "$@"', "echo sbatch: error: Socket timed out >&2; exit 1"),
    "scontrol": (
        'sleep 5; exec "$real" "$@"',
        "exit 1",
        "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1",
    ),
}
# A slurmctld that was killed since has forgotten that the processes of a suspended job stand still.
RESUME = "sh -c 'scontrol resume {job} || { scontrol suspend {job}; scontrol resume {job}; }'"
# Longer than Slurm takes to end a job's processes (KillWait is 5 s), to start them, or to try a launch again.
STUCK_S = 20.0
# Daemons without which no strike is noticed, and how their strikes are called.
_DAEMONS = {"slurmctld": "slurmctld", **dict.fromkeys(NODES, "slurmd")}


class Strikes:
    """The cluster, the heads, and what befalls them."""

    def __init__(self, cluster, folder, faults, seed):
        self.cluster, self.folder, self.random = cluster, folder, random.Random(seed)
        (folder / "lies").mkdir(parents=True)
        self.head_env = {"LD_PRELOAD": str(faults), "RB_FAULT_FILE": str(folder / "faults")}
        for command in LIES:
            # Read once: it may be gone between a look at it and its use.
            lie = f'lie=$(cat {folder / "lies" / command} 2>/dev/null)\nif [ -n "$lie" ]; then eval "$lie"'
            self.head_env |= fake(folder, command, f'{lie}; else exec "$real" "$@"; fi')
        self.heads = {}
        self.restore = []
        self.counts = Counter()
        self._stuck = {}

    def strikes(self):
        """All of them, by name; one that stands here twice is twice as likely."""
        return [
            *[("kill_head", lambda: self._signal_head(signal.SIGKILL))] * 2,
            ("interrupt_head", lambda: self._signal_head(signal.SIGINT)),
            ("requeue", lambda: self._strike_job("scontrol requeue {job}")),
            ("preempt", lambda: self._strike_job("sbatch -p h100-urgent -N1 --gres=gpu:h100:8 --wrap='sleep 2'")),
            ("suspend", lambda: self._strike_job("scontrol suspend {job}", RESUME)),
            ("lose_slurmd", lambda: self._strike_daemon("slurmd", "kill", 5, 30)),
            ("freeze", lambda: self._strike_daemon("slurmctld", "freeze", 2, 10)),
            ("restart_slurmctld", lambda: self._strike_daemon("slurmctld", "stop", 1, 6)),
            # What it had not saved it forgets, or brings back.
            ("kill_slurmctld", lambda: self._strike_daemon("slurmctld", "kill", 1, 6)),
            ("freeze_slurmd", lambda: self._strike_daemon("slurmd", "freeze", 2, 15)),
            *[("lie", self._lie), ("falter", self._falter)] * 2,
            ("break_node", self._break_node),
        ]

    def struck(self):
        """How often which strike has struck."""
        return {name: self.counts[name] for name, _ in self.strikes()}

    def strike(self):
        """One of them, if it finds what it wants."""
        name, strike = self.random.choice(self.strikes())
        if (what := strike()) is not None:
            self.counts[name] += 1
            self.log(f"{name} {what}")

    def log(self, words):
        """For whoever wants to know why something did not hold."""
        with (self.folder / "storm.log").open("a") as log:
            log.write(f"{time.strftime('%H:%M:%S')} {words}\n")

    # Undoing ------------------------------------------------------------------------------------------------------

    def undo(self, all_of_it=False):
        """Undo what is over."""
        now = time.monotonic()
        over = [item for item in self.restore if all_of_it or item[0] <= now]
        self.restore = [item for item in self.restore if item not in over]
        for _, what, back in over:
            self.log(f"undo {what}")
            back()

    def administer(self):
        """Start daemons that are down, let waiting and forgotten jobs go, take back nodes that Slurm has drained."""
        for name, what in _DAEMONS.items():
            daemon = self.cluster.daemons.get(name)
            if (daemon is None or daemon.poll() is not None) and not self.under_way(what):
                self.log(f"{name} was down")
                self.cluster.start_daemon(name)
        if self.under_way("slurmctld"):
            return
        for job in self.queue():
            if job["state"] == "SUSPENDED" and not self.under_way(f"suspended {job['id']}"):
                self.cluster.run("scontrol", "resume", job["id"])
            # `JobHeldAdmin`; `launch failed requeued held` where a node could not start it.
            if job["state"] == "PENDING" and "held" in job["reason"].lower():
                self.cluster.run("scontrol", "release", job["id"])
            elif job["state"] == "PENDING" and "Begin" in job["reason"]:
                self.cluster.run("scontrol", "update", f"jobid={job['id']}", "StartTime=now")
        if not self.under_way("slurmd"):
            for line in self.cluster.run("sinfo", "-h", "-N", "-o", "%N %t").stdout.splitlines():
                name, state = line.split()
                if state.startswith(("down", "drain", "drng", "fail")):
                    self._set_node(name, "resume")

    def unstick(self, without_process):
        """Help jobs on that Slurm itself would come back to after many minutes, as an administrator does.

        Given is whether no process of a job is left. Where the word of a slurmd that was killed has been lost, its job
        stays COMPLETING. A slurmctld that was killed just after a requeue has the job RUNNING again, and meets the old
        life's last moment when it asks the node. A slurmd may take a job that is over for one that runs, and refuse
        each launch; which of them does stands only in its log, and jobs live on without their slurmd.
        """
        stuck = {}
        for job in self.queue():
            refused, state = job["reason"] == "launch failed requeued held", job["state"]
            if refused if state == "PENDING" else state in ("COMPLETING", "RUNNING") and without_process(job):
                since = stuck[job["id"], state] = self._stuck.get((job["id"], state), time.monotonic())
                if time.monotonic() > since + STUCK_S:
                    self.log(f"job {job['id']} stays {state} {job['reason']} {job['nodes']}")
                    del stuck[job["id"], state]
                    if state == "RUNNING":
                        self.cluster.run("scontrol", "requeue", job["id"])
                    for node_state in ("down", "resume") if state == "COMPLETING" else ():
                        self._set_node(job["nodes"], node_state)
                    for node in GPU_NODES if state == "PENDING" else ():
                        self.cluster.stop_daemon(node)
                        self.cluster.start_daemon(node)
        self._stuck = stuck

    def _set_node(self, node, state):
        self.cluster.run("scontrol", "update", f"nodename={node}", f"state={state}", "reason=storm")

    def queue(self):
        """The jobs in the queue; none where the controller does not answer, which a storm must bear."""
        with contextlib.suppress(ClusterError):
            return self.cluster.jobs()
        return []

    def under_way(self, what):
        """Whether such a strike is not undone yet."""
        return any(what == other for _, other, _ in self.restore)

    def _later(self, what, least, most, undo):
        self.restore.append((time.monotonic() + self.random.uniform(least, most), what, undo))
        return what

    # Strikes: each returns a word on what it did, or None where there was nothing to do -----------------------------

    def _signal_head(self, number):
        alive = [name for name, head in self.heads.items() if head.poll() is None]
        if not alive:
            return None
        name = self.random.choice(alive)
        os.killpg(self.heads[name].pid, number)
        return name

    def _strike_job(self, command, undo=""):
        """A command of Slurm at a job that runs, perhaps undone some seconds later by another one."""
        running = [] if self.under_way("slurmctld") else self.queue()
        if not (running := [job for job in running if job["state"] == "RUNNING" and job["name"].startswith("arm")]):
            return None
        job = self.random.choice(running)
        does, undoes = (shlex.split(words.replace("{job}", job["id"])) for words in (command, undo))
        self.cluster.run(*does)
        if undo:
            return self._later(f"suspended {job['id']}", 2, 8, lambda: self.cluster.run(*undoes))
        return f"{job['id']} {job['name']}"

    def _strike_daemon(self, what, how, least, most):
        """slurmctld or a node's slurmd is stopped, killed or frozen for so many seconds; Slurm knows of a lost node."""
        if self.under_way(what) or ((what, how) == ("slurmd", "kill") and self.under_way("slurmctld")):
            return None
        name = self.random.choice(GPU_NODES) if what == "slurmd" else what
        if (daemon := self.cluster.daemons.get(name)) is None:
            return None
        if how == "freeze":
            daemon.send_signal(signal.SIGSTOP)
            return self._later(what, least, most, lambda: daemon.send_signal(signal.SIGCONT)) + f" {name}"
        lost = what == "slurmd"
        (self.cluster.kill_daemon if how == "kill" else self.cluster.stop_daemon)(name)
        if lost:
            self._set_node(name, "down")

        def back():
            self.cluster.start_daemon(name)
            if lost:
                self._set_node(name, "resume")

        return self._later(what, least, most, back) + f" {name}"

    def _break_node(self):
        """A node that fails the check of its GPUs, and is free again at once."""
        node = self.random.choice(GPU_NODES)
        broken = self.folder / f"broken-{node}"
        if broken.exists():
            return None
        broken.touch()
        return self._later(f"broken {node}", 5, 20, lambda: broken.unlink(missing_ok=True))

    def _lie(self):
        command = self.random.choice(tuple(LIES))
        lie, words = self.folder / "lies" / command, self.random.choice(LIES[command])
        lie.write_text(words + "\n")
        self._later(f"lie {command}", 2, 8, lambda: lie.unlink(missing_ok=True))
        return f"{command}: {words}"

    def _falter(self):
        parts = self.random.sample(PARTS, self.random.randint(1, 4))
        number = self.random.choice((116, 5, 13, 24))
        (self.folder / "faults").write_text("".join(f"{number} {part}$\n" for part in parts))
        self._later("faults", 1, 6, lambda: (self.folder / "faults").unlink(missing_ok=True))
        return f"{number} {' '.join(parts)}"
