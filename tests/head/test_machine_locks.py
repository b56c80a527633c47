"""Outside Slurm one training at a time has this machine, or each of its GPUs, whoever of one user started it."""

import contextlib
import itertools
import os
import signal
from pathlib import Path

import pytest

from ..job.run_bench import RunBench
from ..programs import executable

WAITS = {"STAND_IN_WAIT": "2"}


@pytest.fixture
def bench(tmp_path):
    """Runs of different checkouts and heads, with two GPUs in name."""
    made = []
    executable(tmp_path / "bin" / "nvidia-smi", "printf 'GPU 0: H (UUID: GPU-a1)\\nGPU 1: H (UUID: GPU-b2)\\n'")

    def make(name, gpus="", **more):
        head_env = {"ROLLOUTBENCH_LOCKS_DIR": str(tmp_path / "locks"), "CUDA_VISIBLE_DEVICES": gpus}
        head_env["PATH"] = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        made.append(one := RunBench(tmp_path / name, steps=4, head_env=head_env, **more))
        one.spec["workload"]["gpus_per_node"] = len(list(filter(None, gpus.split(","))))
        return one

    yield make
    for one in made:
        one.end()


def test_a_second_training_waits_for_the_first_one_and_says_so_once(bench, tmp_path):
    first, second = bench("a", env=WAITS), bench("b")
    head = first.start(2)
    other = second.start()
    second.wait_for_words(other, "waits for this machine: process ")
    (said,) = [line for line in second.said(other).splitlines() if "waits for" in line]
    assert str(first.run) in said
    assert not list(second.run.glob("attempts/*"))
    assert (tmp_path / "locks").stat().st_mode & 0o777 == 0o700
    first.go()
    assert first.ended(head) and head.returncode == 0
    assert "waits for" in second.ended(other) and other.returncode == 0
    assert second.said(other).count("waits for") == 1
    ends, begins = (one.read("attempts", "1", name) for one, name in ((first, "exit.json"), (second, "attempt.json")))
    assert ends["time"] <= begins["started"]


def test_a_killed_training_holds_up_nobody(bench):
    first, second = bench("a", env=WAITS), bench("b")
    head = first.start(2)
    other = second.start()
    second.wait_for_words(other, "waits for this machine")
    head.kill()
    for process in first.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    second.ended(other)
    assert other.returncode == 0


def test_each_gpu_has_a_lock_of_its_own_whatever_it_is_called(bench):
    first, beside, third = bench("a", "0", env=WAITS), bench("b", "GPU-b"), bench("c", "1,0")
    head = first.start(2)
    assert beside.launch().returncode == 0
    other = third.start()
    third.wait_for_words(other, "waits for GPU-a1: process ")
    first.go()
    assert first.ended(head) and third.ended(other) and other.returncode == 0


@pytest.mark.parametrize("how", ["Ctrl-C", "stop"])
def test_one_that_waits_can_be_stopped(bench, how):
    first, second = bench("a", env=WAITS), bench("b")
    first.start(2)
    other = second.start()
    second.wait_for_words(other, "waits for this machine")
    if how == "Ctrl-C":
        other.send_signal(signal.SIGINT)
    else:
        (second.run / "stop").write_text("soon")
    said = second.ended(other)
    assert other.returncode == 1 and "was stopped" in said and "Traceback" not in said, said
    assert not list(second.run.glob("attempts/*"))
    second.wait(lambda: not second.processes())


def test_all_that_wait_get_their_turn(bench):
    first = bench("a", env=WAITS)
    first.start(2)
    waiting = [bench("b", run_id=f"run-{number}") for number in range(3)]
    heads = [one.start() for one in waiting]
    for one, head in zip(waiting, heads, strict=True):
        one.wait_for_words(head, "waits for this machine")
    first.go()
    for one, head in zip(waiting, heads, strict=True):
        one.ended(head)
        assert head.returncode == 0
    spans = sorted(
        (one.read("attempts", "1", "attempt.json")["started"], one.read("attempts", "1", "exit.json")["time"])
        for one in waiting
    )
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_a_folder_that_others_may_enter_is_refused(bench, tmp_path):
    one = bench("a")
    (tmp_path / "locks").mkdir(mode=0o755)
    (tmp_path / "locks").chmod(0o755)
    refused = one.launch()
    assert refused.returncode == 1 and "must be a folder of yours that nobody else may enter" in refused.stderr
    assert not Path(one.run / "attempts").exists()
