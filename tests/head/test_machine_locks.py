"""Outside Slurm one training at a time has this machine, or each of its GPUs, whoever of one user started it."""

import contextlib
import os
import signal

import pytest

from ..programs import executable

WAITS = {"STAND_IN_WAIT": "2"}


@pytest.fixture
def started(bench, tmp_path):
    """Starts runs of different checkouts and heads, with two GPUs in name; the first of a test waits after step 2."""
    executable(tmp_path / "bin" / "nvidia-smi", "printf 'GPU 0: H (UUID: GPU-a1)\\nGPU 1: H (UUID: GPU-b2)\\n'")

    def start(name, gpus="", **more):
        head_env = {"ROLLOUTBENCH_LOCKS_DIR": str(tmp_path / "locks"), "CUDA_VISIBLE_DEVICES": gpus}
        head_env["PATH"] = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        one = bench(tmp_path / name, steps=4, head_env=head_env, **more)
        one.spec["workload"]["gpus_per_node"] = len(list(filter(None, gpus.split(","))))
        return one, one.start(2 if more else 0)

    return start


def test_trainings_wait_for_the_first_one_say_so_once_and_get_their_turn_or_are_stopped(started, tmp_path):
    """Their turn comes when the first one is killed, and when the next one has finished."""
    first, head = started("a", env=WAITS)
    waiting = [started(f"b{number}") for number in range(4)]
    for one, its in waiting:
        one.wait_for_words(its, "waits for this machine: process ")
        (said,) = [line for line in one.said(its).splitlines() if "waits for" in line]
        assert str(first.run) in said and not list(one.run.glob("attempts/*"))
    assert (tmp_path / "locks").stat().st_mode & 0o777 == 0o700
    waiting[0][1].send_signal(signal.SIGINT)
    (waiting[1][0].run / "stop").write_text("soon")
    for one, its in waiting[:2]:
        said = one.ended(its)
        assert its.returncode == 1 and "was stopped" in said and "Traceback" not in said, said
        assert not list(one.run.glob("attempts/*"))
        one.wait(lambda one=one: not one.processes())
    head.kill()
    for process in first.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    spans = []
    for one, its in waiting[2:]:
        assert one.ended(its).count("waits for") == 1 and its.returncode == 0
        begun, ended = one.read("attempts", "1", "attempt.json"), one.read("attempts", "1", "exit.json")
        spans.append((begun["started"], ended["time"]))
    assert min(spans)[1] <= max(spans)[0]


def test_each_gpu_has_a_lock_of_its_own_whatever_it_is_called(started):
    first, head = started("a", "0", env=WAITS)
    beside, its = started("b", "GPU-b")
    assert beside.ended(its) and its.returncode == 0
    third, other = started("c", "1,0")
    third.wait_for_words(other, "waits for GPU-a1: process ")
    first.go()
    assert first.ended(head) and third.ended(other) and other.returncode == 0


def test_a_folder_that_others_may_enter_is_refused(started, tmp_path):
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks").chmod(0o755)
    one, head = started("a")
    refused = one.ended(head)
    assert head.returncode == 1 and "must be a folder of yours that nobody else may enter" in refused
    assert not (one.run / "attempts").exists()
