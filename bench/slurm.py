"""Measures what the launchers cost a Slurm cluster: a real one, the tests' Slurm on loopback.

Four questions: how long until a trainer runs, beside plain sbatch; how often is Slurm asked, and what do 1, 50 and 300
waiting launchers need, beside waiters that each ask and hold submitit themselves; how soon is a job's end noticed.
Slurm is asked every half-minute, as in production.
"""

from __future__ import annotations

import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.heads import Head, Site, cpu_s, pss_mb, wait_for
from bench.measure import Line
from tests.slurm.cluster import Cluster, why_not

REPEATS = 7
WAITING = (1, 50, 300)
WINDOW_S = 60.0
SETTLE_S = 12.0
STARTED_AT_ONCE = 20
# One question in half a minute, and one to accounting where a job has ended.
QUERIES_PER_MINUTE = 4.0
# The answer's age, a third of it until each head has read a new one, and a second's poll: 41 s; then Slurm's own time.
NOTICED_S = 45.0
WAITER_MB = 15.0
# A tenth of a core for all of them.
WAITERS_CPU_S = 6.0

GPUS = ("slurm_partition=h100", "gres=gpu:h100:8")
NAIVE = "import submitit, sys; print(flush=True); sys.stdin.read()"
NAIVE_WAITERS = 10


def slurm_lines() -> list[Line]:
    """All figures of the launchers on Slurm; none, and a word on why, where there is no Slurm."""
    if reason := why_not():
        print(f"not measured: {reason}", file=sys.stderr)
        return []
    # Short names: a socket's path holds 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="rbb"))
    try:
        with Cluster(folder / "slurm") as cluster:
            site = Site(cluster, folder)
            return [*_start_lines(site), *_notice_lines(site), *_waiting_lines(site)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start_lines(site: Site) -> list[Line]:
    """From the launcher's start to the trainer's first line, and from sbatch's start to the first line of a script."""
    ours, plain, heads, submitters, in_slurm = [], [], [], [], []
    for number in range(REPEATS):
        head = Head(site.run("start", f"start-s{number}", 1, GPUS, STAND_IN_STEP_S="0"))
        head.wait_until(lambda head=head: head.ended, "to finish")
        run, record = head.run.run, head.run.read("order.json")
        began = float((run / "attempts" / "1" / "began").read_text())
        ours.append(began - head.started)
        # The head writes the run's spec as its first act, and the submission its intent as its own first.
        spec_written = (run / "spec.json").stat().st_mtime
        heads.append(spec_written - head.started)
        submitters.append((run / "submitit" / "1").stat().st_ctime - spec_written)
        in_slurm.append(began - record["submitted"])
        _idle(site)
        plain.append(_plain_start(site, number))
        _idle(site)
    more = [mine - other for mine, other in zip(ours, plain, strict=True)]
    what = "Slurm, idle: from the start of the launcher to the trainer's first line"
    return [
        Line(what, statistics.median(ours), 10, "s", statistics.median(plain)),
        Line("... more than sbatch and srun take", statistics.median(more), 5, "s"),
        Line("... of it the launcher's start", statistics.median(heads), None, "s"),
        Line("... of it the start of the program that submits", statistics.median(submitters), None, "s"),
        Line("... from sbatch's answer to the first line", statistics.median(in_slurm), None, "s"),
    ]


def _plain_start(site: Site, number: int) -> float:
    """Seconds from sbatch's start to the time that `srun date` prints, with what the launcher asks for."""
    output = site.folder / f"plain-{number}"
    asked = time.time()
    site.cluster.run(
        *("sbatch", "--partition=h100", "--gres=gpu:h100:8", "--cpus-per-task=2", "--mem=1000M"),
        *(f"--output={output}", "--wrap", "srun --cpus-per-task=2 date +%s.%N"),
    )
    wait_for(lambda: output.is_file() and output.read_text().endswith("\n"), "a plain job's output")
    return float(output.read_text()) - asked


def _idle(site: Site) -> None:
    wait_for(lambda: not site.cluster.jobs(), "the cluster to be idle")


def _notice_lines(site: Site) -> list[Line]:
    """From a job's end to its head's end or word, with jobs that end at all phases of the half-minute."""

    def heads(kind: str, count: int, options: tuple[str, ...], steps: int = 1000, **env: str) -> list[Head]:
        runs = [site.run("notice", f"{kind}-s{number}", steps, options, **env) for number in range(count)]
        return [Head(run) for run in runs]

    gpu1, gpu2 = (("slurm_partition=h100", f"nodelist={node}") for node in ("gpu1", "gpu2"))
    slow = {"STAND_IN_STEP_S": "0.5"}
    preempted = heads("preempted", 4, (*gpu2, "gres=gpu:h100:2"), STAND_IN_STEP_S="2")
    cancelled = heads("cancelled", 8, (*gpu1, "gres=gpu:h100:1"), **slow)
    finished = heads("finished", 4, ("slurm_partition=cpu",), 20, **slow)
    failed = heads("failed", 4, ("slurm_partition=cpu",), STAND_IN="fail", STAND_IN_STEP_S="5")
    for head in (*preempted, *cancelled):
        head.wait_until(lambda head=head: head.said_at("/1000"), "to run")
    waiting = heads("waiting", 2, (*gpu1, "gres=gpu:h100:8"))
    for head in waiting:
        head.wait_until(head.job_id, "to be submitted")

    # Every few seconds one is cancelled, and every other time one preempted, over more than one half-minute.
    cancel_times: dict[Head, float] = {}
    preempt_times: dict[Head, float] = {}
    for number, head in enumerate((*cancelled, *waiting)):
        began = time.monotonic()
        site.cluster.run("scancel", str(head.job_id()))
        cancel_times[head] = time.time()
        if number % 2 == 0 and len(preempt_times) < len(preempted):
            victim = _preempt_one(site, [one for one in preempted if one not in preempt_times])
            preempt_times[victim] = victim.run.read("attempts", "1", "exit.json")["time"]
        time.sleep(max(0.0, began + 4.1 - time.monotonic()))

    for head in (*cancelled, *waiting, *finished, *failed):
        head.wait_until(lambda head=head: head.ended, "to notice its job's end")
    for head in preempted:
        head.wait_until(lambda head=head: head.said_at("waits: BeginTime"), "to notice")
    site.cluster.run("scancel", "--name=urgent")
    resumed = []
    for head in preempted:
        site.cluster.release(str(head.job_id()))
        head.wait_until(lambda head=head: head.said_at("attempt 2 runs"), "to go on")
        told, run = head.said_at("attempt 2 runs"), head.run
        assert told is not None
        resumed.append(told - run.read("attempts", "2", "attempt.json")["started"])
    for head in preempted:
        head.detach()
        site.cluster.run("scancel", str(head.job_id()))
    _idle(site)

    def since(head: Head, *file: str) -> float:
        assert head.ended is not None
        return head.ended - head.run.run.joinpath(*file).stat().st_mtime

    took = {
        "finished": [since(head, "attempts", "1", "done.json") for head in finished],
        "failed": [since(head, "attempts", "1", "log") for head in failed],
        "cancelled while it ran": [(head.ended or 0.0) - cancel_times[head] for head in cancelled],
        "cancelled while it waited": [(head.ended or 0.0) - cancel_times[head] for head in waiting],
        "preempted": [(head.said_at("waits: BeginTime") or 0.0) - preempt_times[head] for head in preempted],
        "going on after it": resumed,
    }
    return [
        Line(
            f"Slurm: {what}, noticed (worst of {len(all_s)}, median {statistics.median(all_s):.1f} s)",
            *(max(all_s), NOTICED_S, "s"),
        )
        for what, all_s in took.items()
    ]


def _preempt_one(site: Site, running: list[Head]) -> Head:
    """Have an urgent job take two GPUs away; whose they were."""
    site.cluster.run(
        *("sbatch", "--partition=h100-urgent", "--job-name=urgent", "--nodelist=gpu2", "--gres=gpu:h100:2"),
        *("--mem=1000M", "--output=/dev/null", "--wrap", "sleep 600"),
    )

    def victim() -> Head | None:
        return next((head for head in running if (head.run.run / "attempts" / "1" / "exit.json").is_file()), None)

    found: Head = wait_for(victim, "a job to be preempted")
    return found


def _waiting_lines(site: Site) -> list[Line]:
    """What heads need whose jobs wait in the queue, at growing numbers of them."""
    # Both nodes are taken, so that all others wait.
    site.cluster.run(
        *("sbatch", "--partition=h100", "--nodes=2", "--exclusive", "--gres=gpu:h100:8", "--output=/dev/null"),
        *("--wrap", "sleep 3600"),
    )
    wait_for(lambda: [job for job in site.cluster.jobs() if job["state"] == "RUNNING"], "the nodes to be taken")
    queries, memory, cpu = [], [], []
    heads: list[Head] = []
    before = site.calls()
    try:
        for count in WAITING:
            _start_heads(site, heads, count)
            calls, cpu_before, began = site.calls(), _cpu_of(heads), time.monotonic()
            site.controllers_calls()
            time.sleep(WINDOW_S)
            per_minute = 60.0 / (time.monotonic() - began)
            asked = (site.calls() - calls).total()
            queries.append(asked * per_minute)
            if queries[-1] > QUERIES_PER_MINUTE / 2 + 1:
                print(f"{asked} queries with {count} runs waiting:\n{site.told_calls(asked)}", file=sys.stderr)
            cpu.append((_cpu_of(heads) - cpu_before) * per_minute)
            rpcs = site.controllers_calls() * per_minute
            memory.append(pss_mb(pid for head in heads for pid in head.pids()) / count)
            if left := [head.run.run_id for head in heads if head.process.poll() is not None]:
                raise SystemExit(f"{len(left)} launchers did not wait: {', '.join(left[:5])}")
        submissions = (site.calls() - before)["sbatch"] / len(heads)
        query_ms, controller_ms = _cost_of_a_query(site)
    finally:
        for head in heads:
            if head.process.poll() is None:
                head.process.terminate()
        for head in heads:
            head.detach()
    naive_mb = _naive_waiter_mb()
    unshared = [count * 2.0 for count in WAITING]
    most = WAITING[-1]

    def per_query(cost_ms: float, shared: float, alone: float) -> tuple[float, None, str, float]:
        return shared * cost_ms, None, "ms/min", alone * cost_ms

    return [
        *(
            Line(f"Slurm: queries a minute, {count} runs waiting", asked, QUERIES_PER_MINUTE, "/min", plain)
            for count, asked, plain in zip(WAITING, queries, unshared, strict=True)
        ),
        Line(f"... of slurmctld's own count, {most} runs waiting (an squeue is two)", rpcs, None, "/min"),
        Line(f"... CPU time they take, {most} runs waiting", *per_query(query_ms, queries[-1], unshared[-1])),
        Line("... of it slurmctld's", *per_query(controller_ms, queries[-1], unshared[-1])),
        Line("Slurm: calls of sbatch for a submission", submissions, 1, ""),
        *(
            Line(f"Slurm: memory of a waiting launcher, {count} of them", each, WAITER_MB, "MB", naive_mb)
            for count, each in zip(WAITING, memory, strict=True)
        ),
        *(
            Line(f"Slurm: CPU time of all launchers a minute, {count} of them", used, WAITERS_CPU_S, "s")
            for count, used in zip(WAITING, cpu, strict=True)
        ),
    ]


def _start_heads(site: Site, heads: list[Head], count: int) -> None:
    """Start launchers until there are so many, and wait until each of them waits."""
    while len(heads) < count:
        number = len(heads)
        heads.append(Head(site.run("wait", f"wait-s{number}", 5, GPUS)))
        # Not all at once: what Snakemake can start at the same time is bounded by its own speed, too.
        early = heads[max(0, number - STARTED_AT_ONCE)]
        early.wait_until(early.job_id, "to be submitted")
    for head in heads:
        head.wait_until(lambda head=head: head.said_at("submitted as"), "to be submitted")
    time.sleep(SETTLE_S)


def _cpu_of(heads: list[Head]) -> float:
    return sum(cpu_s(pid) for head in heads for pid in head.pids())


def _cost_of_a_query(site: Site, times: int = 50) -> tuple[float, float]:
    """CPU time in ms of one question about all jobs, in all and slurmctld's part of it."""
    command = ["squeue", f"--user={site.cluster.env['USER']}", "--states=all", "--noheader", "--format=%A|%T|%r|%k|%j"]
    controller = site.controllers_cpu_s()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(times):
        subprocess.run(command, env=site.cluster.env, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    client = after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
    controller = site.controllers_cpu_s() - controller
    return (client + controller) / times * 1e3, controller / times * 1e3


def _naive_waiter_mb() -> float:
    """The memory of a process that holds submitit, as one does that waits in `job.result()`."""
    pipe = subprocess.PIPE
    waiters = [subprocess.Popen([sys.executable, "-c", NAIVE], stdin=pipe, stdout=pipe) for _ in range(NAIVE_WAITERS)]
    try:
        for waiter in waiters:
            assert waiter.stdout is not None
            waiter.stdout.readline()
        return pss_mb(waiter.pid for waiter in waiters) / len(waiters)
    finally:
        for waiter in waiters:
            waiter.communicate(b"")
