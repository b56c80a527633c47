"""What a head waits for: files that cannot be read while a job is submitted and begins, and a Ctrl-C wherever it waits.

Slurm's commands are scripts here: each says how it hangs, fails or answers.
"""

import contextlib
import os
import signal
import time
from functools import partial

import pytest

from workflow.runs.locks import try_lock

from ..late_signals import late_signals
from ..runs.make_runs import MadeRun
from ..slurm_files.test_queue import line, squeue

SLURM = ("submit_to=slurm", "slurm_partition=h100", "runtime=60")


@pytest.mark.promise("files-that-cannot-be")
def test_files_refused_while_a_job_is_submitted_and_begins_are_waited_for(bench, faults, tmp_path):
    """The submission's folder, the stack's record and the stack's interpreter; no trainer is needed to lose a run."""
    one = bench(head_env={"LD_PRELOAD": str(faults), "RB_FAULT_FILE": str(tmp_path / "faults")})
    refused = ("5 /stack/verify.json", "24 /env/bin/python$")

    def times_said():
        """By the job."""
        return sum(file.read_text().count("trying again for") for file in one.run.glob("submitit/*/*log.*"))

    (tmp_path / "faults").write_text("116 arm-s0/submitit/1")
    head = one.start()
    one.wait_for_words(head, "trying again in")
    (tmp_path / "faults").write_text(refused[0])
    for number in range(1, len(refused) + 1):
        one.wait(lambda number=number: times_said() == number or head.poll() is not None)
        assert head.poll() is None, one.said(head)
        time.sleep(1)
        (tmp_path / "faults").write_text("".join(refused[number : number + 1]))
    one.ended(head)
    assert head.returncode == 0, one.said(head)
    assert times_said() == len(refused), "once each"
    assert one.journal() == [(1, step) for step in range(1, 6)]


def commands(folder, **scripts):
    """A head's environment in which Slurm's commands are scripts; HANG is one that does not come back."""
    (folder / "bin").mkdir(parents=True)
    wait = f"touch {folder}/hangs; timeout 100 sh -c 'until [ -e {folder}/go ]; do sleep 0.2; done'"
    for name in ("squeue", "sacct", "sbatch", "scontrol", "scancel"):
        script = scripts.get(name, "exit 1").replace("HANG", wait)
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / "bin" / name).chmod(0o755)
    return {"PATH": f"{folder}/bin:{os.environ['PATH']}"}


DOWN = "echo 'sbatch: error: Unable to contact slurm controller' >&2; exit 1"
PENDING = squeue(line("7", "PENDING", "Priority", f"arm-s0.{'0' * 16}"))
# What Slurm's commands do, the record of an earlier submission, and by what it is known that the head waits: its words,
# or a command that hangs.
WAITS = {
    "a squeue that hangs": ({"squeue": "HANG"}, {}, "hangs"),
    "the same, of a head that trains here": ({"squeue": "HANG"}, {}, "hangs"),
    "an sbatch that hangs": ({"squeue": squeue(), "sbatch": "HANG"}, None, "hangs"),
    "a Slurm that is down": ({"squeue": squeue(), "sbatch": DOWN}, None, "trying again in"),
    "an order without a job": ({"squeue": squeue(), "sbatch": DOWN}, {"job_id": ""}, "trying again in"),
    "a job that waits": ({"squeue": PENDING}, {}, "waiting for its end"),
    "another head": ({}, None, "another launcher is responsible for this run"),
    "files": ({}, {}, "trying again for"),
}


@pytest.mark.promise("a-head-handles-ctrl")
def test_a_head_hears_a_ctrl_c_wherever_it_waits(bench, faults, tmp_path):
    """Also one that comes just before it waits. Within two seconds; those that a busy machine kept are tried again."""
    late = list(WAITS)
    for again in range(3):
        seconds = seconds_to_the_end(bench, faults, tmp_path / str(again), late)
        print({name: round(value, 1) for name, value in seconds.items()})
        late = [name for name in late if seconds.get(name, 99.0) > 4]
        if not late:
            break
    assert not late


def seconds_to_the_end(bench, faults, base, names):
    """How long after a Ctrl-C each head ends that waits; without those that do not."""
    heads = {}
    with contextlib.ExitStack() as held:
        for number, name in enumerate(names):
            folder, (scripts, earlier, _) = base / str(number), WAITS[name]
            options = () if name.endswith("here") else SLURM
            one = bench(folder, options=options, head_env=commands(folder, **scripts) | late_signals(folder / "late"))
            one.run.mkdir(parents=True)
            if earlier is not None:
                MadeRun(one.run.parents[1], "arm-s0").job(**earlier)
            if name == "another head":
                held.enter_context(try_lock(one.run / ".head.lock"))
            if name == "files":
                one.head_env |= {"LD_PRELOAD": str(faults), "RB_FAULT_FILE": str(folder / "faults")}
                (folder / "faults").write_text("5 arm-s0/order.json$")
            heads[name] = one, one.start()
        for name, (one, head) in heads.items():
            one.wait(partial(waits, one, head, WAITS[name][2]))
        told = time.monotonic()
        for _, head in heads.values():
            os.killpg(head.pid, signal.SIGINT)
        seconds = {}
        while len(seconds) < len(heads) and time.monotonic() < told + 20:
            ended = {name for name, (_, head) in heads.items() if head.poll() is not None} - seconds.keys()
            seconds |= dict.fromkeys(ended, time.monotonic() - told)
            time.sleep(0.05)
    for one, _ in heads.values():
        (one.folder / "go").touch()
    for name in seconds:
        one, head = heads[name]
        said = one.said(head)
        assert head.returncode == 1 and "Traceback" not in said, (name, said)
        assert "stopped while" in said or "detached" in said, (name, said)
    return seconds


def waits(one, head, by):
    """Whether a head waits."""
    assert head.poll() is None, one.said(head)
    return (one.folder / "hangs").exists() if by == "hangs" else by in one.said(head)
