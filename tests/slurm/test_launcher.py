"""The launcher on a real Slurm, where it takes more than one run or a full disk; all else is in scenarios.toml."""

import shutil
import subprocess

import pytest

# What happens to a run happens while its trainer waits after a step: for a stop, or for `go`.
WAIT_AFTER_2 = {"STAND_IN_WAIT": "2"}


@pytest.mark.promise("small-runs-share-a")
def test_small_runs_share_a_node_and_get_gpus_of_their_own(run, tmp_path):
    options = ("gres=gpu:h100:2", "nodelist=gpu1")
    two = [
        run(folder=tmp_path / name, steps=6, env=WAIT_AFTER_2, options=options, run_id=name)
        for name in ("a-s0", "b-s0")
    ]
    heads = [one.start() for one in two]
    for one in two:
        one.wait_for_step(2)
    assert [job["nodes"] for one in two for job in one.jobs()] == ["gpu1", "gpu1"]
    for one in two:
        one.go()
    for one, head in zip(two, heads, strict=True):
        one.finish(head)
    gpus = [one.done()["gpus"].split(",") for one in two]
    assert [len(own) for own in gpus] == [2, 2] and not set(gpus[0]) & set(gpus[1])


@pytest.mark.promise("a-run-with-a")
def test_a_copy_of_the_results_lets_the_originals_job_alone(run, tmp_path):
    one = run(folder=tmp_path / "original", steps=12, env=WAIT_AFTER_2)
    head = one.start(2)
    # Without squeue's answer, which the head writes anew all the time.
    kept = shutil.ignore_patterns(".squeue.*")
    shutil.copytree(tmp_path / "original" / "results", tmp_path / "copy" / "results", ignore=kept)
    other = run(folder=tmp_path / "copy", steps=12, env={"STAND_IN_STEP_S": "0.5"})
    again = other.start()
    other.wait(lambda: other.submitted() == 2)
    one.go()
    one.finish(head)
    other.finish(again)
    assert one.job_id() != other.job_id()


@pytest.mark.promise("stale-files-of-submitit")
def test_a_disk_that_fills_up_is_a_failure_that_says_so(run, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600M", "tmpfs", str(small)], check=False)
    if mounted.returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        one = run(folder=small, steps=40, env=WAIT_AFTER_2)
        head = one.start(2)
        with (small / "ballast").open("wb") as ballast:
            try:
                while True:
                    ballast.write(b"x" * 65536)
            except OSError:
                pass
        one.go()
        said = one.ended(head, 120)  # the job waits for room for half a minute, then the head as long
        assert head.returncode == 1
        assert any(words in said for words in ("No space left on device", "no space left", "GiB free in"))
        (small / "ballast").unlink()
        one.finish(one.start())
        assert one.done()["last_step"] == 40
    finally:
        one.cluster.run("scancel", "--user=root")
        one.end()
        subprocess.run(["umount", "-l", str(small)], check=True)
