"""The launcher on a real Slurm: whatever dies, a run is trained by one job at a time and nothing done is lost.

The trainer is a stand-in (tests/job/stand_in_trainer.py); Slurm, submitit, the job and the heads are real.
"""

import json
import os
import shutil
import signal
import subprocess
import time

import pytest

from workflow.runs.locks import try_lock

from .runs import SlurmScript, fake
from .test_hostile import rolloutbench

SLOW = {"STAND_IN_STEP_S": "0.5"}
# What happens to a run happens while its trainer waits after a step: for a stop, or for `go`.
WAIT_AFTER_2 = {"STAND_IN_WAIT": "2"}
WAIT_AFTER_3 = {"STAND_IN_WAIT": "3"}
NO_CHECKPOINT_BUT_AT_A_STOP = WAIT_AFTER_2 | {"STAND_IN_SAVE": "100"}

# The plain way ----------------------------------------------------------------------------------------------------


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


@pytest.mark.promise("slurm-gives-what-the")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("slurm_partition=a100",), "invalid partition specified: a100"),
        (("gres=gpu:b200:8",), "Requested node configuration is not available"),
        (("submit_to=kubernetes",), "Snakemake's executor 'kubernetes'"),
    ],
)
def test_what_the_site_does_not_have_is_told_and_nothing_is_left(run, options, says):
    one = run(options=options)
    result = one.launch()
    assert result.returncode == 1
    assert says in result.stderr and "Traceback" not in result.stderr
    assert one.jobs() == [] and one.journal() == []


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


# The site's setup script ------------------------------------------------------------------------------------------


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


# Lives ------------------------------------------------------------------------------------------------------------


def preempt(one):
    one.cluster.run("sbatch", "-p", "h100-urgent", "-N2", "--gres=gpu:h100:8", "--wrap=sleep 2")


@pytest.mark.promise("preempted-with-and-without")
def test_preempted_with_a_grace_it_stops_after_its_step_and_goes_on(run, make_cluster):
    one = run(on=make_cluster(grace_s=30), steps=8, env=NO_CHECKPOINT_BUT_AT_A_STOP)
    head = one.start()
    one.wait_for_words(head, "attempt 1 runs on")
    one.wait_for_step(2)
    preempt(one)
    one.wait(lambda: one.attempts()[0])
    one.release()
    said = one.finish(head)
    assert "attempt 1 stopped after step" in said and "preempted" in said
    assert one.attempts()[0]["cause"] == "preempted"
    assert one.job_id() == one.read("attempts", "2", "attempt.json")["slurm"]["job_id"], "requeued, not submitted anew"


@pytest.mark.promise("preempted-with-and-without")
def test_preempted_without_a_grace_it_goes_on_from_its_last_checkpoint(run):
    one = run(steps=8, env=WAIT_AFTER_3 | {"STAND_IN_SAVE": "2"})
    head = one.start(3)
    preempt(one)
    one.release()
    one.finish(head)
    assert len(one.attempts()) == 2


@pytest.mark.promise("a-signal-before-a")
@pytest.mark.parametrize("grace_s", [0, 30])
def test_preempted_before_the_trainer_hears_signals_it_is_requeued(run, make_cluster, grace_s):
    """Slurm signals every process of a job: one that still imports its libraries dies of it, which is no failure."""
    one = run(on=make_cluster(grace_s=grace_s), steps=3, env={"STAND_IN": "deaf_at_first"})
    head = one.start()
    one.wait(lambda: (log := one.run / "attempts" / "1" / "log").is_file() and log.read_text())
    preempt(one)
    one.release()
    one.finish(head)
    assert len(one.attempts()) == 2


@pytest.mark.promise("preempted-with-and-without")
def test_preempted_by_cancelling_it_is_requeued_or_submitted_again(run, make_cluster):
    one = run(on=make_cluster(preempt_mode="CANCEL"), steps=8, env=WAIT_AFTER_3)
    head = one.start(3)
    preempt(one)
    said = one.finish(head)
    assert "was preempted; submitting it again" in said


@pytest.mark.promise("a-run-longer-than")
def test_at_its_time_limit_it_stops_is_requeued_and_finishes_over_several_lives(run):
    # Slurm looks for limits every half-minute: two lives of up to 33 s must not be enough.
    one = run(steps=70, env={"STAND_IN_STEP_S": "1", "STAND_IN_SAVE": "1000"})
    head = one.start()
    for life in (1, 2):
        one.wait(lambda life=life: one.journal() and one.journal()[-1][0] == life)
        one.cluster.run("scontrol", "update", f"jobid={one.job_id()}", "TimeLimit=1")
        one.wait(lambda life=life: one.attempts()[life - 1])
        assert one.attempts()[life - 1]["cause"] == "time limit"
        one.cluster.run("scontrol", "update", f"jobid={one.job_id()}", "TimeLimit=60")
        one.release()
    one.finish(head)
    assert len(one.attempts()) == 3


@pytest.mark.promise("invariant-6", "repeated-attempts-without-a")
def test_lives_without_a_new_step_come_to_an_end(run):
    one = run(steps=5, env={"STAND_IN_STEP_S": "600"}, options=("restarts=1",))
    head = one.start()
    for life in (1, 2):
        one.wait(lambda life=life: (one.run / "attempts" / str(life) / "log").is_file())
        one.cluster.run("scontrol", "requeue", one.job_id())
        one.release()
    said = one.ended(head)
    assert head.returncode == 1
    assert "arm-s0: made no progress: 2 attempts in a row without a new step" in said
    one.wait(lambda: not one.jobs())  # a head hears of the end from the job, which is still leaving
    again = one.start()  # a person who starts it again has mended something: the count begins anew
    one.wait(lambda: len(one.attempts()) == 3)
    assert again.poll() is None


@pytest.mark.promise("a-second-signal-during")
def test_a_second_signal_during_the_checkpoint_does_not_hurt(run):
    one = run(steps=8, env=NO_CHECKPOINT_BUT_AT_A_STOP | {"STAND_IN_SAVE_S": "3"})
    head = one.start(2)
    one.cluster.run("scancel", "--signal=USR2", one.job_id())
    one.wait(lambda: list(one.run.glob("checkpoints/*/partial")))
    one.cluster.run("scancel", "--signal=USR2", one.job_id())
    one.cluster.run("scancel", "--signal=TERM", one.job_id())
    one.release()
    one.finish(head)
    assert len(one.attempts()) == 2


@pytest.mark.promise("a-second-signal-during")
def test_a_trainer_that_does_not_listen_is_ended_and_goes_on_from_its_checkpoint(run):
    env = WAIT_AFTER_3 | {"STAND_IN": "deaf", "STAND_IN_SAVE": "2"}
    one = run(steps=8, env=env, options=("stop_grace_s=5",))
    head = one.start(3)
    one.cluster.run("scancel", "--signal=USR2", one.job_id())
    one.wait(lambda: one.attempts()[0])
    assert one.attempts()[0]["code"] == -signal.SIGKILL
    one.release()
    one.finish(head)


@pytest.mark.promise("requeued-or-held-by")
def test_requeued_and_held_by_an_administrator_it_says_so_and_goes_on(run):
    one = run(steps=8, env=WAIT_AFTER_2)
    head = one.start(2)
    one.cluster.run("scontrol", "requeuehold", one.job_id())
    one.wait_for_words(head, "waits: job requeued in held state")
    one.cluster.run("scontrol", "release", one.job_id())
    one.release()
    one.finish(head)


@pytest.mark.promise("a-silent-hang-is")
def test_a_hang_is_looked_into_stopped_and_given_one_more_chance(run):
    options = ("hang_min_s=3", "hang_factor=5")
    one = run(steps=6, env={"STAND_IN": "hang_once"}, options=options)
    head = one.start()
    one.wait(lambda: one.attempts() and one.attempts()[0])
    assert one.attempts()[0]["kind"] == "hung"
    log = (one.run / "attempts" / "1" / "log").read_text()
    assert "wait_for_ever" in log, "the stacks name the function that it hangs in"
    one.release()
    said = one.finish(head)
    assert "attempt 1 hung after step 2: no new step for" in said


@pytest.mark.promise("a-silent-hang-is")
def test_a_second_hang_is_a_failure_with_its_reason(run):
    options = ("hang_min_s=3", "hang_factor=5")
    one = run(steps=6, env={"STAND_IN": "hang", "STAND_IN_SAVE": "100"}, options=options)
    head = one.start()
    one.wait(lambda: one.attempts() and one.attempts()[0])
    one.release()
    said = one.ended(head)
    assert head.returncode == 1
    assert "arm-s0: hung twice: no new step for" in said and "after step 2" in said
    one.wait(lambda: not one.jobs())  # a head hears of the end from the job, which is still leaving


@pytest.mark.promise("a-silent-hang-is")
def test_it_does_not_take_a_suspended_job_for_a_hung_one(run):
    one = run(steps=6, env={"STAND_IN_STEP_S": "0.3"}, options=("hang_min_s=4", "hang_factor=2"))
    head = one.start(2)
    one.cluster.run("scontrol", "suspend", one.job_id())
    one.looks(4)  # every other second: twice as long as a hang takes
    one.cluster.run("scontrol", "resume", one.job_id())
    one.finish(head)
    assert [end["kind"] for end in one.attempts()] == ["finished"]


# Ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("a-failure-names-its")
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("refuse", "error: options.foo is not a known setting"),
        ("no_step", "was killed by signal 9"),
        ("lie", "its last_step is 1, expected 5"),
    ],
)
def test_a_trainers_own_failure_is_not_tried_again(run, fault, says):
    one = run(env={"STAND_IN": fault})
    result = one.launch()
    assert result.returncode == 1
    assert says in result.stderr
    assert f"log: {one.run / 'attempts' / '1' / 'log'}" in result.stderr
    assert len(one.attempts()) == 1
    one.wait(lambda: not one.jobs())


@pytest.mark.promise("exit-1-or-a")
@pytest.mark.parametrize("fault", ["fail", "kill_self"])
def test_a_failure_after_progress_is_retried_from_its_checkpoint(run, fault):
    """As an Xid, a lost NCCL peer or a full node's memory end a process: nobody can tell that from its own fault."""
    one = run(steps=5, env={"STAND_IN": fault})
    head = one.start()
    one.wait(lambda: one.attempts() and one.attempts()[0])
    one.release()
    said = one.finish(head)
    assert "attempt 1 " + ("failed" if fault == "fail" else "killed") + " after step 2" in said
    assert [step for _, step in one.journal()] == [1, 2, 3, 4, 5] and one.submitted() == 1


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


@pytest.mark.promise("a-failure-names-its")
def test_out_of_memory_is_named(run, make_cluster):
    extra = (
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=task=1",
        "JobAcctGatherParams=OverMemoryKill",
    )
    one = run(on=make_cluster(extra=extra), env={"STAND_IN": "eat"}, options=("mem_mb=400",))
    result = one.launch()
    assert result.returncode == 1
    assert "ran out of memory" in result.stderr and "mem_mb" in result.stderr
    assert len(one.attempts()) == 1


@pytest.mark.promise("a-failure-names-its")
@pytest.mark.parametrize("when", ["pending", "running", "at its checkpoint"])
def test_cancelled_by_a_person_it_fails_with_the_name_and_goes_on_when_started_again(run, when):
    one = run(steps=8, env=NO_CHECKPOINT_BUT_AT_A_STOP | {"STAND_IN_SAVE_S": "2"})
    if when == "pending":
        one.cluster.run("sbatch", "-p", "h100", "-N2", "--gres=gpu:h100:8", "--wrap=sleep 600")
    head = one.start()
    if when != "pending":
        one.wait_for_step(2)
    if when == "at its checkpoint":
        one.cluster.run("scancel", "--signal=USR2", one.job_id())
        one.wait(lambda: list(one.run.glob("checkpoints/*/partial")))
    one.cluster.run("scancel", one.job_id())
    said = one.ended(head)
    assert head.returncode == 1
    assert "arm-s0: was cancelled by root; start again to resume from its last checkpoint" in said
    one.cluster.run("scancel", "--user=root")
    one.wait(lambda: not one.jobs())
    one.go()
    one.finish(one.start())


@pytest.mark.promise("ctrl-c-detaches-with")
def test_ctrl_c_detaches_and_says_so(run):
    one = run(steps=10, env=WAIT_AFTER_2)
    head = one.start()
    one.wait_for_words(head, "attempt 1 runs on")
    os.killpg(head.pid, signal.SIGINT)
    said = one.ended(head)
    assert head.returncode == 1
    assert f"detached; Slurm job {one.job_id()} continues without this launcher" in said
    assert [job["state"] for job in one.jobs()] == ["RUNNING"]
    again = one.start()
    one.wait_for_words(again, f"attaching to Slurm job {one.job_id()}")
    one.go()
    one.finish(again)


# Heads ------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("a-head-killed-before")
def test_a_killed_head_leaves_its_job_and_the_next_head_attaches(run):
    one = run(steps=12, env=WAIT_AFTER_2)
    head = one.start(2)
    head.kill()
    again = one.start()
    one.wait_for_words(again, f"attaching to Slurm job {one.job_id()}")
    one.go()
    one.finish(again)
    assert {attempt for attempt, _ in one.journal()} == {1}


def kill_with_its_submission(head):
    """As a login node does that goes down: the head, and the program that submits for it."""
    children = subprocess.run(
        ["pgrep", "-P", str(head.pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    head.kill()
    for child in children:
        os.killpg(int(child), signal.SIGKILL)


@pytest.mark.promise("a-head-killed-before")
def test_a_head_killed_before_sbatch_costs_nothing(run, tmp_path):
    one = run(head_env=fake(tmp_path, "sbatch", f"touch {tmp_path}/called; sleep 60"))
    head = one.start()
    one.wait((tmp_path / "called").exists)
    kill_with_its_submission(head)
    one.head_env = {**one.head_env, "PATH": os.environ["PATH"]}
    one.finish(one.start())


@pytest.mark.promise("a-head-killed-before")
def test_a_head_killed_between_sbatch_and_its_record_is_followed_by_one_that_attaches(run, tmp_path):
    script = f'"$real" "$@" && touch {tmp_path}/called; sleep 60'
    one = run(steps=10, env=WAIT_AFTER_2, head_env=fake(tmp_path, "sbatch", script))
    head = one.start()
    one.wait((tmp_path / "called").exists)
    kill_with_its_submission(head)
    assert one.read("order.json")["job_ids"] == []
    one.wait_for_step(2)  # the job needs nobody to begin
    one.head_env = {**one.head_env, "PATH": os.environ["PATH"]}
    again = one.start()
    one.wait_for_words(again, "attaching to Slurm job")
    one.go()
    one.finish(again)
    assert {attempt for attempt, _ in one.journal()} == {1}, "the one job that was submitted has trained it"


@pytest.mark.promise("an-sbatch-that-fails")
def test_an_sbatch_that_failed_and_submitted_is_found(run, tmp_path):
    script = '"$real" "$@"; echo "sbatch: error: Batch job submission failed: Socket timed out" >&2; exit 1'
    one = run(env=WAIT_AFTER_2, head_env=fake(tmp_path, "sbatch", script))
    head = one.start()
    one.wait_for_words(head, "submitted as Slurm job")
    one.go()
    one.finish(head)
    assert one.submitted() == 1


@pytest.mark.promise("repeated-attempts-without-a")
def test_six_preemptions_without_grace_are_no_failure_of_a_script(run):
    """Each life prints steps that the one before it had not; none of them lives to report anything."""
    one = run(kind=SlurmScript, steps=30, env={"STAND_IN_STEP_S": "0.3", "STAND_IN_SAVE": "1"}, options=("restarts=1",))
    head = one.start()
    for life in range(1, 4):
        one.wait(lambda life=life: one.journal() and one.journal()[-1][0] == life and len(one.journal()) > 3 * life)
        preempt(one)
        one.release()
    one.finish(head)
    assert len(one.attempts()) == 4


@pytest.mark.promise("an-sbatch-that-fails")
def test_two_heads_race_and_one_job_trains(run):
    one = run(steps=6, env=SLOW)
    heads = [one.start() for _ in range(3)]
    while any(head.poll() is None for head in heads):
        one.jobs()  # asserts that one runs at most
        time.sleep(0.3)
    for head in heads:
        one.finish(head)
    assert one.submitted() == 1


@pytest.mark.promise("an-sbatch-that-fails", "invariant-1")
def test_two_heads_whose_locks_do_not_meet_still_train_once(run, tmp_path):
    """As on two login nodes with a file system whose locks stay on each."""
    one = run(steps=8, env=WAIT_AFTER_2)
    first = one.start(2)
    (one.run / ".head.lock").unlink()  # the second head locks another file
    second = one.start()
    one.wait_for_words(second, "attaching to Slurm job")
    one.go()
    for head in (first, second):
        one.finish(head)
    assert {attempt for attempt, _ in one.journal()} == {1}


@pytest.mark.promise("a-wrong-number-from")
def test_a_wrong_number_from_sbatch_is_corrected_by_the_jobs_name(run, tmp_path):
    """As where a site's sbatch says other things first; and its own comment replaces ours."""
    script = 'echo "Info: this job 8000 units will be charged"; "$real" --comment=billing:proj7 "$@"'
    one = run(steps=10, env=SLOW, head_env=fake(tmp_path, "sbatch", script))
    one.finish(one.start())
    assert one.submitted() == 1


def test_a_lock_that_outlives_its_node_is_not_believed(run):
    """As on file systems that keep the locks of a node that died; earlier releases took one."""
    one = run(steps=3)
    lock = try_lock(one.run / ".live.lock")
    assert lock is not None
    with lock:
        one.finish(one.start())


@pytest.mark.promise("what-was-cancelled-through")
def test_cancelled_by_us_it_does_not_come_back_though_slurm_has_forgotten_it(run, make_cluster):
    one = run(on=make_cluster(accounting=False, extra=("MinJobAge=2",)), steps=60, env=WAIT_AFTER_2)
    one.head_env["ROLLOUTBENCH_SLURM_EVERY_S"] = "12"
    head = one.start(2)
    assert "cancelled Slurm job" in rolloutbench(one, "print(cancel(experiment, ['arm-s0']))")
    said = one.ended(head)
    assert head.returncode == 1
    assert "was cancelled by root" in said and one.submitted() == 1


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


@pytest.mark.promise("a-wrong-number-from")
def test_a_shells_own_settings_for_squeue_do_not_hide_jobs(run):
    one = run(steps=8, env=SLOW, head_env={"SQUEUE_PARTITION": "cpu", "SQUEUE_STATES": "COMPLETED"})
    one.finish(one.start())
    assert one.submitted() == 1


@pytest.mark.promise("a-run-with-a")
def test_a_run_that_lives_in_slurm_is_not_trained_here_as_well(run):
    one = run(steps=12, env=WAIT_AFTER_2)
    head = one.start(2)
    head.kill()
    head.wait()
    slurms, one.options = one.options, ()
    here = one.start()
    one.wait_for_words(here, f"Slurm job {one.job_id()} was submitted with another profile; waiting for its end (`roll")
    here.send_signal(signal.SIGINT)
    assert "stopped while waiting" in one.ended(here) and here.returncode == 1
    one.go()
    one.options = slurms
    one.finish(one.start())


# Slurm itself -----------------------------------------------------------------------------------------------------


@pytest.mark.promise("a-node-that-dies")
def test_a_node_that_dies_costs_the_steps_since_the_checkpoint(run):
    one = run(steps=10, env=WAIT_AFTER_3 | {"STAND_IN_SAVE": "2"})
    head = one.start(3)
    node = one.jobs()[0]["nodes"]
    one.cluster.kill_node(node)
    one.release()
    one.finish(head)
    hosts = [one.read("attempts", str(number), "attempt.json")["slurm"]["nodes"] for number in (1, 2)]
    assert hosts[0] == node != hosts[1]


@pytest.mark.promise("slurmctld-restarted-down-at")
def test_slurmctld_may_be_restarted_while_a_run_trains(run):
    one = run(steps=24, env=WAIT_AFTER_2)
    head = one.start(2)
    one.cluster.stop_daemon("slurmctld")
    one.wait_for_words(head, "Slurm does not answer")
    one.go()
    one.wait_for_step(12)
    one.cluster.start_daemon("slurmctld")
    one.finish(head)
    assert len(one.attempts()) == 1


@pytest.mark.promise("slurmctld-restarted-down-at")
def test_slurmctld_down_at_submission_is_waited_for(run):
    one = run()
    one.cluster.stop_daemon("slurmctld")
    head = one.start()
    time.sleep(12)
    assert head.poll() is None
    one.cluster.start_daemon("slurmctld")
    one.finish(head)
    assert len(one.attempts()) == 1


@pytest.mark.promise("slurmctld-restarted-down-at")
def test_slurmctld_down_at_the_requeue_is_waited_for(run):
    one = run(steps=8, env=NO_CHECKPOINT_BUT_AT_A_STOP)
    head = one.start(2)
    job_id = one.job_id()
    one.cluster.stop_daemon("slurmctld")
    # slurmctld is not there to send its signal: the job's own process gets it as slurmd would give it.
    jobs = [process for process in one.processes() if "workflow.job.begin" in " ".join(process.cmdline())]
    for process in jobs:
        process.send_signal(signal.SIGUSR2)
    one.wait(lambda: one.attempts()[0])
    time.sleep(3)
    one.cluster.start_daemon("slurmctld")
    one.release()
    one.finish(head)
    assert one.job_id() == job_id and one.submitted() == 1


@pytest.mark.promise("a-job-that-slurm")
@pytest.mark.parametrize("accounting", [True, False])
def test_a_job_that_slurm_has_lost_is_submitted_again(run, make_cluster, accounting):
    one = run(on=make_cluster(accounting=accounting), steps=10, env=WAIT_AFTER_3)
    head = one.start(3)
    one.cluster.stop_daemon("slurmctld")
    for file in (one.cluster.folder / "state").glob("job_state*"):
        file.unlink()
    for node in ("gpu1", "gpu2"):
        one.cluster.kill_node(node)
    for daemon in ("slurmctld", "gpu1", "gpu2"):
        one.cluster.start_daemon(daemon)
    said = one.finish(head)
    assert "submitting it again" in said, said


@pytest.mark.promise("slurmctld-restarted-down-at")
def test_without_accounting_the_ends_are_noticed_all_the_same(run, make_cluster):
    one = run(on=make_cluster(accounting=False), steps=8, env=WAIT_AFTER_2)
    head = one.start(2)
    one.cluster.run("scancel", one.job_id())
    said = one.ended(head)
    assert head.returncode == 1
    assert "was cancelled by somebody (accounting does not say who)" in said
    one.finish(one.start())


@pytest.mark.promise("slurmctld-restarted-down-at")
def test_slurmdbd_down_does_not_stop_a_run(run):
    one = run(steps=8, env=WAIT_AFTER_2)
    one.cluster.stop_daemon("slurmdbd")
    head = one.start(2)
    one.cluster.run("scontrol", "requeue", one.job_id())
    one.release()
    one.finish(head)


# Files ------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("stale-files-of-submitit")
def test_stale_files_of_submitit_and_empty_checkpoints_do_no_harm(run):
    one = run(steps=8, env=WAIT_AFTER_2)
    head = one.start(2)
    folder = one.run / "submitit" / "1"
    (folder / f"{one.job_id()}_submitted.pkl.save_tmp").write_bytes(b"stale")
    (folder / f"{one.job_id()}_0_result.pkl").write_bytes(b"stale")
    one.cluster.run("scontrol", "requeue", one.job_id())
    one.wait(lambda: one.jobs()[0]["state"] == "PENDING")
    for file in one.run.glob("checkpoints/*/*"):
        file.unlink()
    one.release()
    said = one.ended(head)
    assert head.returncode == 0, said
    assert [step for attempt, step in one.journal() if attempt == 2] == list(range(1, 9)), (
        "no checkpoint: from the start"
    )


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
