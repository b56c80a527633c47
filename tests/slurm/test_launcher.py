"""The launcher on a real Slurm: what a run gets from it, and what its setup script and its disk do to it.

What else befalls runs there is in scenarios.toml.
"""

import json
import shutil
import subprocess

import pytest

SLOW = {"STAND_IN_STEP_S": "0.5"}
# What happens to a run happens while its trainer waits after a step: for a stop, or for `go`.
WAIT_AFTER_2 = {"STAND_IN_WAIT": "2"}


def test_a_run_is_trained_on_the_cluster(run):
    one = run()
    first = one.launch()
    assert first.returncode == 0, first.stderr
    job = one.read("attempts", "1", "attempt.json")
    assert job["slurm"]["nodes"] in ("gpu1", "gpu2")
    assert f"submitted as Slurm job {job['slurm']['job_id']}" in first.stderr
    assert "step 5/5" in first.stderr
    assert one.read("end.json")["kind"] == "finished"
    assert one.launch().stderr.count("already finished (attempt 1)") == 1
    one.assert_trained_once()


@pytest.mark.promise("slurm-gives-what-the")
def test_what_the_profile_asks_for_is_what_slurm_gives(run, tmp_path):
    (tmp_path / "set up.sh").write_text("export STAND_IN_STEP_S=1.5\n")
    options = ("nodelist=gpu2", "mem_mb=5000", "runtime=90", f"setup={tmp_path / 'set up.sh'}")
    one = run(steps=3, options=options)
    head = one.start(1)
    job = dict(
        word.split("=", 1)
        for word in one.cluster.run("scontrol", "show", "job", "-o", one.job_id()).stdout.split()
        if "=" in word
    )
    assert (job["NodeList"], job["Partition"], job["TimeLimit"]) == ("gpu2", "h100", "01:30:00")
    assert "gres/gpu=8" in job["TRES"] and "cpu=2" in job["TRES"] and "mem=5000M" in job["TRES"]
    assert job["JobName"].startswith("arm-s0.") and job["Requeue"] == "1"
    one.finish(head)
    rows = (one.run / "attempts" / "1" / "metrics.jsonl").read_text().splitlines()
    first, *_, last = (json.loads(row)["time"] for row in rows)
    assert last - first > 2, "setup.sh was sourced in the job"


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


@pytest.mark.promise("fewer-gpus-or-another")
def test_gpus_are_the_experiments_or_nothing_is_submitted(run):
    one = run(options=("gres=gpu:h100:2",))
    one.spec["workload"]["gpus_per_node"] = 4
    refused = one.launch()
    assert refused.returncode == 1
    assert (
        "arm-s0: the experiment needs 4 GPUs per node (workload.gpus_per_node), but the profile requests"
        in refused.stderr
    )
    assert not (one.run / "order.json").exists() and one.jobs() == []
    one.spec["workload"]["gpus_per_node"] = 1
    said = one.finish(one.start())
    assert "requests 2 GPUs per node from Slurm (gres: 'gpu:h100:2') and uses 1" in said
    assert len(one.done()["gpus"].split(",")) == 1, "the trainer sees those alone"


@pytest.mark.promise("a-failing-setup-script")
@pytest.mark.parametrize(
    ("script", "says"),
    [
        (
            "echo the last\nfalse\n",
            ["with exit code 1, before the trainer was started", "| the last", "| line 2: false:"],
        ),
        ("echo leaving; exit 0\n", ["ended the job by `exit` (it is sourced)", "| leaving"]),
    ],
)
def test_a_setup_that_fails_is_told_with_its_last_lines_and_nothing_is_trained(run, tmp_path, script, says):
    setup = tmp_path / "site's set up.sh"
    setup.write_text(script)
    one = run(options=(f"setup={setup}",))
    result = one.launch()
    assert result.returncode == 1
    assert f"arm-s0: {setup} " in result.stderr and f"log: {one.run / 'setup.log'}" in result.stderr
    assert all(words.format(setup=setup) in result.stderr for words in says), result.stderr
    assert one.read("end.json")["kind"] == "setup failed"
    assert one.attempts() == [] and one.submitted() == 2, "tried once more, on the other node"
    assert "trying once more without gpu" in result.stderr and one.read("order.json")["avoid"]
    one.wait(lambda: not one.jobs())
    setup.write_text("nowhere || true\ntested() { nowhere; true; }\ntested\nset -eu\nexport STAND_IN_STEP_S=0\n")
    one.finish(one.start())


@pytest.mark.promise("a-failing-setup-script")
def test_a_signal_of_slurms_during_setup_is_no_failure_of_it_and_a_failure_in_a_later_life_is(run, tmp_path):
    lives = tmp_path / "lives"
    setup = tmp_path / "setup.sh"
    setup.write_text(
        f"echo x >> {lives}\n[ $(wc -l < {lives}) -gt 1 ] || sleep 60\n[ $(wc -l < {lives}) -lt 3 ] || nowhere\n"
    )
    one = run(steps=40, env=SLOW, options=(f"setup={setup}",))
    head = one.start()
    one.wait(lives.is_file)
    one.cluster.run("scontrol", "requeue", one.job_id())
    one.release()
    one.wait_for_step(2)
    assert not (one.run / "end.json").exists()
    one.cluster.run("scontrol", "requeue", one.job_id())
    one.release()
    said = one.ended(head)
    assert head.returncode == 1
    assert f"{setup} failed with exit code 127" in said and "nowhere: command not found" in said


@pytest.mark.promise("a-failing-setup-script")
def test_a_node_that_fails_its_check_is_tried_around_once(run):
    """One broken node, which is free again at once, does not fail the whole queue."""
    one = run(steps=3, env={"STAND_IN": "unfit_once"})
    said = one.finish(one.start())
    bad, good = (one.read("attempts", str(number), "attempt.json")["nodes"][0] for number in (1, 2))
    assert f"failed the check of its node's GPUs; trying once more without {bad} (--exclude)" in said and good != bad
    other = run(folder=one.folder / "other", steps=3, env={"STAND_IN": "unfit"})
    head = other.start()
    assert "failed the check of its node's GPUs" in other.ended(head) and head.returncode == 1
    assert len(other.attempts()) == 2, "once"


@pytest.mark.promise("a-run-with-a")
def test_a_copy_of_the_results_lets_the_originals_job_alone(run, tmp_path):
    one = run(folder=tmp_path / "original", steps=12, env=WAIT_AFTER_2)
    head = one.start(2)
    # Without squeue's answer, which the head writes anew all the time.
    kept = shutil.ignore_patterns(".squeue.*")
    shutil.copytree(tmp_path / "original" / "results", tmp_path / "copy" / "results", ignore=kept)
    other = run(folder=tmp_path / "copy", steps=12, env=SLOW)
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
