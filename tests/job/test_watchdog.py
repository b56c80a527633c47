"""When has a training hung, and was it for want of memory?"""

import json
import subprocess
import sys
import time

import psutil
import pytest

from workflow.job.stopping import Watchdog, dump_stacks
from workflow.runs.ends import exit_of, explain, memory_error, oom_kills
from workflow.runs.paths import AttemptPaths
from workflow.runs.progress import Progress, StepReader, reached_step

pytestmark = pytest.mark.promise("a-silent-hang-is")


def write_step(metrics, step, seconds):
    row = {"step": step, "phases": {"step": seconds}, "scalars": {}}
    with metrics.open("a") as file:
        file.write(json.dumps(row) + "\n")


def test_patience_is_a_multiple_of_the_median_step(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    dog = Watchdog(metrics, hang_factor=10, hang_min_s=30, first_step_s=100)
    assert all(dog.tick(1.0) is None for _ in range(100)), "until its first step it has more time"
    write_step(metrics, 1, 60.0)
    for step in range(2, 7):
        write_step(metrics, step, 5.0)
    assert all(dog.tick(1.0) is None for _ in range(50))
    assert dog.tick(1.0) == "no new step for 51 s after step 6, where 5 s are usual"
    write_step(metrics, 7, 5.0)
    assert dog.tick(1.0) is None


def test_without_a_first_step_it_says_so_and_zero_turns_it_off(tmp_path):
    dog = Watchdog(tmp_path / "none", hang_factor=10, hang_min_s=1, first_step_s=3)
    assert [dog.tick(1.0) for _ in range(4)][-1] == "no new step for 4 s before its first step"
    off = Watchdog(tmp_path / "none", hang_factor=0, hang_min_s=1, first_step_s=3)
    assert all(off.tick(1.0) is None for _ in range(100))


def test_a_pause_of_the_watcher_itself_is_not_the_trainers(tmp_path):
    dog = Watchdog(tmp_path / "none", hang_factor=10, hang_min_s=1, first_step_s=3)
    assert dog.tick(3600.0) is None


def test_damaged_lines_do_not_disturb(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_bytes(b'{"step": 1}\nnonsense\n\xff\xfe\n[]\n{"step": 2, "phases": {"step": NaN}, "scalars": {}}\n')
    write_step(metrics, 3, 2.0)
    with metrics.open("a") as file:
        file.write('{"step": 4, "phases": {"st')
    progress = Progress(StepReader(metrics), 10)
    assert (progress.poll() or "").startswith("step 3/10")
    assert reached_step(AttemptPaths(tmp_path)) == 3 and reached_step(AttemptPaths(tmp_path / "none")) == 0


@pytest.mark.parametrize("listens", [True, False])
def test_the_stacks_of_a_hanging_trainer_reach_its_log(tmp_path, listens):
    log = tmp_path / "log"
    program = (
        "import faulthandler, signal, sys, time\nif sys.argv[1] == 'True': faulthandler.register(signal.SIGUSR1)\n"
        "def stuck_in_a_collective():\n    print('ready', flush=True); time.sleep(600)\nstuck_in_a_collective()"
    )
    with log.open("a") as out:
        trainer = subprocess.Popen([sys.executable, "-c", program, str(listens)], stdout=out, stderr=out)
    try:
        while "ready" not in log.read_text() or psutil.Process(trainer.pid).status() != psutil.STATUS_SLEEPING:
            time.sleep(0.05)
        dump_stacks(trainer.pid, log)
        assert "stuck_in_a_collective" in log.read_text()
    finally:
        trainer.kill()
        trainer.wait()
    dump_stacks(trainer.pid, log)  # it has ended meanwhile: nothing to see, no error


TRACEBACK = "Traceback (most recent call last):\n  File 'x.py', line 1, in <module>\n"


@pytest.mark.promise("a-failure-names-its")
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"{TRACEBACK}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB\n", "out of GPU memory"),
        (f"{TRACEBACK}RuntimeError: CUDA error: out of memory\n", "out of GPU memory"),
        (f"{TRACEBACK}MemoryError\n", "out of memory"),
        (
            "(pid=7) ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory\n",
            "out of memory",
        ),
        (f"{TRACEBACK}RuntimeError: the loss is not a number\n", None),
        ("memory usage: 12 GiB\n", None),
        # A completion on code, which the trainer has printed before it failed.
        (
            f"step 7: sample completion: except MemoryError: pass\nMemoryError\n{TRACEBACK}KeyError: 'ground_truth'\n",
            None,
        ),
    ],
)
def test_a_trainers_last_error_says_whose_memory_it_lacked(tmp_path, text, kind):
    attempt = AttemptPaths(tmp_path)
    attempt.log.write_text(f"step 1\n{text}")
    assert (memory_error(attempt.log) or {}).get("kind") == kind
    end = exit_of(1, attempt, killed_for_memory=False)
    assert end["kind"] == (kind or "failed")
    assert ("request more (mem_mb" in explain(end, {})) == (kind == "out of memory")
    assert memory_error(tmp_path / "none") is None


def test_the_kernels_count_is_read_from_either_kind_of_cgroup(tmp_path):
    for line, file in (
        ("0::/slurm/job_7", "slurm/job_7/memory.events"),
        ("4:memory:/job_7", "memory/job_7/memory.oom_control"),
    ):
        (tmp_path / "cgroup").write_text(f"3:cpu:/x\n{line}\n")
        counter = tmp_path / file
        counter.parent.mkdir(parents=True)
        counter.write_text("low 0\noom 3\noom_kill 2\n")
        assert oom_kills(tmp_path / "cgroup", tmp_path) == 2
    assert oom_kills(tmp_path / "none", tmp_path) == 0
