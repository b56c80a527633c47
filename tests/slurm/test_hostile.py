"""A cluster that lies, falters and loses hold of its jobs: each scenario once, with a real Slurm, heads and jobs.

What Slurm's commands say is falsified by scripts in front of the true ones, what the file system and the clock say by a
preloaded library (faults.c).
"""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest
import yaml

from ..job.run_bench import ROOT
from ..runs.make_runs import MadeRun, write
from .runs import fake

SLOW = {"STAND_IN_STEP_S": "0.5"}
NO_CHECKPOINT_BUT_AT_A_STOP = SLOW | {"STAND_IN_SAVE": "100"}


def rolloutbench(one, code):
    """What a line of Python prints about the run's `experiment`, on a machine of the cluster's."""
    lines = (
        "import sys; from pathlib import Path",
        "from workflow.commands.cancel import cancel",
        "from workflow.runs.experiment import Experiment, ExpectedRun",
        "from workflow.runs.run_state import run_states",
        "from workflow.commands.status import status_lines, take_snapshot",
        "experiment = Experiment('experiment', Path(sys.argv[1]), [ExpectedRun('arm-s0', sys.argv[2])])",
        code,
    )
    words = [sys.executable, "-c", "\n".join(lines), str(one.run.parents[1]), one.spec["fingerprint"]]
    told = subprocess.run(words, env=one.head_env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    return told.stdout


def cancel(one):
    return rolloutbench(one, "print(cancel(experiment, []))")


def status(one):
    return rolloutbench(one, "print(*status_lines(take_snapshot(experiment)), sep='\\n')")


def lose_the_node(one):
    """Its slurmd dies, and Slurm gives it up; the job's processes live on."""
    node = one.jobs()[0]["nodes"]
    one.cluster.kill_daemon(node)
    one.cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=slurmd is dead")
    return node


# A life that Slurm gave up ----------------------------------------------------------------------------------------


@pytest.mark.promise("a-life-on-a", "invariant-2")
def test_a_life_on_a_node_that_slurm_gave_up_ends_when_the_next_one_begins(run):
    # The given-up life trains on for as long as the next one takes to begin.
    one = run(steps=60, env=SLOW | {"STAND_IN_SAVE": "2", "STAND_IN_WAIT": "50"})
    head = one.start(3)
    node = lose_the_node(one)
    one.release()
    one.wait(lambda: len(one.attempts()) == 2)
    assert one.attempts()[0]["kind"] == "superseded"
    begun, ended = ((one.run / name).stat().st_mtime for name in ("life.json", "attempts/1/exit.json"))
    assert 0 < ended - begun < 60
    one.finish(head)
    assert one.read("attempts", "2", "attempt.json")["slurm"]["nodes"] != node
    assert one.submitted() == 1


@pytest.mark.promise("a-life-that-slurm")
def test_a_run_that_finishes_on_a_node_that_slurm_gave_up_leaves_no_job_in_the_queue(run):
    one = run(steps=5, env={"STAND_IN_WAIT": "2"})
    head = one.start(2)
    lose_the_node(one)
    one.wait_for_words(head, "waits: BeginTime")
    one.go()
    one.finish(head)
    one.wait(lambda: not one.jobs())


@pytest.mark.promise("a-life-on-a")
def test_a_life_that_cannot_be_ended_is_told_and_seen_and_can_be_cancelled(run, faults, tmp_path):
    env = {"LD_PRELOAD": str(faults), "RB_FAULT_FILE": str(tmp_path / "faults"), "ROLLOUTBENCH_TAKE_OVER_S": "12"}
    one = run(steps=1000, env=SLOW, head_env=env)
    head = one.start(2)
    (tmp_path / "faults").write_text("5 /life.json\n")  # it cannot read that another life has begun
    lose_the_node(one)
    one.release()
    said = one.ended(head)
    assert head.returncode == 1 and "Traceback" not in said
    assert "another life of its job could not be ended: attempt 1 on" in said
    one.wait_for_step(one.steps_done() + 2)  # it goes on training
    assert "still writes, on a node that Slurm gave up: `rolloutbench cancel` ends it" in status(one)
    assert "asked to stop at once, by its stop file: Slurm has given it up" in cancel(one)
    one.wait(lambda: not one.processes())


# What has finished, what was cancelled ----------------------------------------------------------------------------


@pytest.mark.promise("a-finished-run-is-not", "invariant-3")
def test_a_run_that_finished_is_not_trained_again_when_its_job_is_requeued(run):
    one = run(steps=6, env=SLOW | {"STAND_IN": "hang_done", "STAND_IN_SAVE": "100"})
    head = one.start()
    one.wait(lambda: (one.run / "attempts" / "1" / "done.json").is_file())
    one.cluster.run("sbatch", "-p", "h100-urgent", "-N2", "--gres=gpu:h100:8", "--wrap=sleep 2")
    one.release()
    one.finish(head)
    assert one.journal()[-1][0] == 1 and len(one.journal()) == 6
    assert len(one.attempts()) == 1


@pytest.mark.promise("a-squeue-that-lies", "invariant-5")
@pytest.mark.parametrize(
    "lie",
    [
        *('"$real" "$@" | head -n 1', "true", '"$real" "$@" | head -c 150', "echo CLUSTER: b"),
        '"$real" "$@" | sed s/RUNNING/PREEMPTED/',  # and accounting agrees
    ],
)
def test_a_squeue_that_lies_costs_a_queue_entry_and_no_step(run, tmp_path, lie):
    one = run(steps=40, env=SLOW)
    one.head_env |= fake(tmp_path, "squeue", f'if [ -e {tmp_path}/lie ]; then {lie}; else "$real" "$@"; fi')
    one.head_env |= fake(tmp_path, "sacct", f'"$real" "$@" | head -n 1; cat {tmp_path}/stale 2>/dev/null; true')
    head = one.start(2)
    (tmp_path / "stale").write_text(
        "\x1f".join([one.job_id(), "PREEMPTED", "0:0", "gpu1", one.read("order.json")["name"]]) + "\n"
    )
    (tmp_path / "lie").touch()
    one.looks(4)
    assert any(word in status(one) for word in (" running ", " unknown ", " waiting ", " finished ", " stopped "))
    (tmp_path / "lie").unlink()
    one.finish(head)
    assert one.submitted() <= 2 and {attempt for attempt, _ in one.journal()} == {1}
    one.wait(lambda: not one.jobs())


@pytest.mark.promise("what-was-cancelled-through")
def test_a_chosen_run_that_slurm_has_lost_hold_of_is_cancelled_for_good(run, tmp_path):
    lying = f'if [ -e {tmp_path}/lie ]; then "$real" "$@" | head -n 1; else exec "$real" "$@"; fi'
    one = run(steps=1000, env=SLOW, head_env=fake(tmp_path, "squeue", lying))
    head = one.start(2)
    head.kill()
    head.wait()
    (tmp_path / "lie").touch()
    assert "asked to stop at once, by its stop file" in rolloutbench(one, "print(cancel(experiment, ['arm-s0']))")
    one.wait(lambda: not one.processes())
    assert "cancelled by root" in status(one) and {attempt for attempt, _ in one.journal()} == {1}


@pytest.mark.promise("what-was-cancelled-through")
@pytest.mark.parametrize("ours", [True, False])
def test_what_is_cancelled_while_it_requeues_itself_stays_cancelled(run, tmp_path, ours):
    slow = f'if [ "$1" = requeue ]; then touch {tmp_path}/requeues; sleep 3; fi; "$real" "$@"'
    one = run(steps=40, env=NO_CHECKPOINT_BUT_AT_A_STOP, head_env=fake(tmp_path, "scontrol", slow))
    head = one.start(2)
    one.cluster.run("scancel", "--signal=USR2", one.job_id())
    one.wait((tmp_path / "requeues").exists)
    if ours:
        assert "cancelled Slurm job" in cancel(one)
    else:
        one.cluster.run("scancel", one.job_id())
    said = one.ended(head)
    assert head.returncode == 1 and "was cancelled by root" in said
    one.wait(lambda: not _processes_with(str(tmp_path)) and not one.jobs())  # nobody is left who could requeue it
    assert {attempt for attempt, _ in one.journal()} == {1}


@pytest.mark.promise("invariant-3", "what-was-cancelled-through")
def test_a_life_of_a_cancelled_job_ends_before_it_trains(run):
    """As where slurmctld, killed, brings a cancelled job back."""
    one = run(steps=40, env=SLOW)
    head = one.start(2)
    end = {"kind": "cancelled", "by": "alice", "order": one.read("order.json")["start"]}
    (one.run / "end.json").write_text(json.dumps(end))
    one.cluster.run("scontrol", "requeue", one.job_id())
    one.release()
    said = one.ended(head)
    assert head.returncode == 1 and "was cancelled by alice" in said
    assert {attempt for attempt, _ in one.journal()} == {1}


class _Evil:
    """A pickle that runs a program when it is loaded."""

    def __init__(self, file):
        self._file = file

    def __reduce__(self):
        return os.system, (f"touch {self._file}",)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write another user's file")
def test_a_folder_that_another_user_has_put_in_place_of_the_experiments_is_not_obeyed(run, tmp_path):
    """As in a group-writable folder of results, while the job waits in the queue."""
    one = run(steps=40, env=SLOW)
    head = one.start(2)
    experiment = one.run.parents[1]
    one.cluster.run("scontrol", "requeue", one.job_id())
    one.wait(lambda: any(job["state"] == "PENDING" for job in one.jobs()))
    mine = experiment.rename(f"{experiment}-mine")
    shutil.copytree(mine, experiment)
    for file in experiment.rglob("*_submitted.pkl"):
        file.write_bytes(pickle.dumps(_Evil(tmp_path / "ran")))
    for path in (experiment, *experiment.rglob("*")):
        os.chown(path, 65534, -1)
    output = experiment / "runs" / one.run_id / "submitit" / "1"
    one.release()
    one.wait(lambda: any("belongs to" in file.read_text() for file in output.glob("*.out")))
    one.wait(lambda: not one.jobs())
    said = one.ended(head)
    assert head.returncode == 1 and "belongs to" in said and "Traceback" not in said
    assert not (tmp_path / "ran").exists() and {attempt for attempt, _ in one.journal()} <= {1}


@pytest.mark.promise("a-life-that-slurm")
def test_a_life_that_was_given_up_requeues_no_other_life(run, tmp_path):
    """Slurm speaks of the next life, which runs, when this one wants to know whether it may requeue the job."""
    script = (
        f'[ "$1" != requeue ] || touch {tmp_path}/requeued\n'
        f'if [ "$1" = show ]; then echo x >> {tmp_path}/shows; if [ $(wc -l < {tmp_path}/shows) -gt 1 ]; then\n'
        '"$real" "$@" | sed s/Restarts=0/Restarts=1/; exit; fi; fi; exec "$real" "$@"'
    )
    one = run(steps=8, env=NO_CHECKPOINT_BUT_AT_A_STOP, head_env=fake(tmp_path, "scontrol", script))
    head = one.start(2)
    one.cluster.run("scancel", "--signal=USR2", one.job_id())
    one.wait(lambda: len(one.attempts()) == 2)
    (tmp_path / "bin" / "scontrol").unlink()
    one.finish(head)
    assert not (tmp_path / "requeued").exists()


@pytest.mark.promise("what-was-cancelled-through")
def test_a_slow_sbatch_hears_ctrl_c_and_cancel_wins_against_it(run, tmp_path):
    waits = f"timeout 120 sh -c 'until [ -e {tmp_path}/go ]; do sleep 0.2; done'"
    one = run(head_env=fake(tmp_path, "sbatch", f'touch {tmp_path}/called; {waits}; exec "$real" "$@"'))
    head = one.start()
    one.wait((tmp_path / "called").exists)
    os.killpg(head.pid, signal.SIGINT)
    said = one.ended(head)
    assert "stopped while its job was being submitted; the submission continues" in said
    assert "its submission is under way; it is cancelled as soon as that ends" in cancel(one)
    (tmp_path / "go").touch()
    one.wait(lambda: one.read("order.json")["job_ids"])
    one.wait(lambda: not one.jobs())
    assert one.journal() == []


# Files that cannot be read ----------------------------------------------------------------------------------------


@pytest.mark.promise("files-that-cannot-be")
@pytest.mark.parametrize("kind", ["116 ", "5 ", "13 ", "116 !"])
def test_files_that_cannot_be_read_for_a_while_end_neither_job_nor_head(run, faults, tmp_path, kind):
    env = {"LD_PRELOAD": str(faults), "RB_FAULT_FILE": str(tmp_path / "faults")}
    one = run(steps=24, env=SLOW, head_env=env)
    head = one.start(2)
    parts = ("arm-s0/stop", "arm-s0/end.json", "life.json", "heartbeat", "/done.json", "arm-s0/order.json")
    (tmp_path / "faults").write_text("".join(f"{kind}{part}\n" for part in parts))
    one.wait_for_words(head, "trying again for")
    one.wait_for_step(one.steps_done() + 5)
    assert head.poll() is None
    (tmp_path / "faults").unlink()
    said = one.finish(head)
    assert said.count("trying again for") == 1, "said once"
    assert len(one.attempts()) == 1


@pytest.mark.promise("files-that-cannot-be")
def test_files_that_cannot_be_read_as_the_trainer_ends_are_waited_for(run, faults, tmp_path):
    env = {"LD_PRELOAD": str(faults), "RB_FAULT_FILE": str(tmp_path / "faults")}
    one = run(steps=6, env={"STAND_IN_WAIT": "3"}, head_env=env)
    head = one.start(3)
    (tmp_path / "faults").write_text("116 !attempts/1/done.json\n116 attempts/1/exit.json\n116 arm-s0/.end\n")
    one.go()
    one.wait_for_step(6)
    time.sleep(4)
    (tmp_path / "faults").unlink()
    one.finish(head)


@pytest.mark.promise("steps-that-are-unreadable")
def test_steps_that_cannot_be_read_for_a_while_are_not_taken_for_none(run, faults, tmp_path):
    env = {"LD_PRELOAD": str(faults), "RB_FAULT_FILE": str(tmp_path / "faults")}
    one = run(steps=10, env={"STAND_IN_WAIT": "3"}, head_env=env, options=("restarts=0",))
    head = one.start(3)
    one.cluster.run("scontrol", "requeue", one.job_id())
    one.wait(lambda: not one.processes())
    (tmp_path / "faults").write_text("116 attempts/1/metrics.jsonl\n")
    one.release()
    one.wait(lambda: "attempts/1/metrics.jsonl" in one.output() or head.poll() is not None)
    (tmp_path / "faults").unlink()
    one.finish(head)
    assert len(one.attempts()) == 2


@pytest.mark.promise("status-and-check-wait")
@pytest.mark.parametrize("words", [["status", "--experiment", "mine"], ["check", str(ROOT / "config.yaml")]])
@pytest.mark.parametrize("kind", ["116 ", "5 !"])
def test_commands_that_look_wait_for_files_that_cannot_be_read(faults, tmp_path, words, kind):
    name = yaml.safe_load((ROOT / "config.yaml").read_text())["experiment"] if words[0] == "check" else "mine"
    made = MadeRun(tmp_path / "results" / name, "vllm-s0").job(cluster="local").attempt(steps=4)
    write(made.paths.experiment / "plan.json", {"runs": ["vllm-s0"], "fingerprints": {"vllm-s0": made.fingerprint}})
    (tmp_path / "faults").write_text("".join(f"{kind}{part}\n" for part in ("/plan.json", "runs/vllm-s0/order.json")))
    env = {**os.environ, "LD_PRELOAD": str(faults), "RB_FAULT_FILE": str(tmp_path / "faults"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "workflow.cli", *words]
    with (tmp_path / "said").open("w") as said:
        looks = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=said, stderr=said)
        while looks.poll() is None and "trying again" not in (tmp_path / "said").read_text():
            time.sleep(0.1)
        (tmp_path / "faults").unlink()
        looks.wait()
    told = (tmp_path / "said").read_text()
    assert looks.returncode == 0 and told.count("trying again for 30 s") == 1, told
    assert " vllm-s0 " in f" {told.partition('trying again')[2]}".replace("\n", " ")


@pytest.mark.promise("a-job-that-fails")
@pytest.mark.parametrize(("what", "says"), [("scancel", "cancelled by"), ("cancel", "cancelled by")])
def test_an_end_that_comes_while_files_cannot_be_read_is_the_heads_end(run, faults, tmp_path, what, says):
    """A head that begins anew for an unreadable file is not one that somebody started again."""
    head_env = {"LD_PRELOAD": str(faults), "RB_FAULT_FILE": str(tmp_path / "faults")}
    one = run(steps=20, env=SLOW | {"STAND_IN_WAIT": "1"}, head_env=head_env)
    head = one.start(1)
    (tmp_path / "faults").write_text("116 arm-s0/end.json\n")
    one.wait_for_words(head, "trying again for")
    if what == "scancel":
        one.cluster.run("scancel", one.job_id())
    else:
        one.head_env = {name: value for name, value in one.head_env.items() if name != "LD_PRELOAD"}
        assert "cancelled Slurm job" in rolloutbench(one, "print(cancel(experiment, ['arm-s0']))")
    one.wait(lambda: not one.jobs())
    (tmp_path / "faults").unlink(missing_ok=True)
    said = one.ended(head)
    assert head.returncode == 1 and says in said, said
    assert one.submitted() == 1


@pytest.mark.promise("a-squeue-that-lies", "invariant-5")
def test_a_waiting_job_that_squeue_leaves_out_costs_one_more_entry_at_most(run, tmp_path):
    lying = f'if [ -e {tmp_path}/lie ]; then "$real" "$@" | head -n 1; else exec "$real" "$@"; fi'
    one = run(steps=5, head_env=fake(tmp_path, "squeue", lying))
    one.cluster.run("sbatch", "-p", "h100", "-N2", "--gres=gpu:h100:8", "--wrap=sleep 600")
    head = one.start()
    one.wait_for_words(head, "waits: ")
    (tmp_path / "lie").touch()
    one.wait_for_words(head, "submitting it again")
    one.looks(4)
    assert one.submitted() == 2 and head.poll() is None
    (tmp_path / "lie").unlink()
    one.wait(lambda: len(one.jobs()) == 2)
    assert "cancelled Slurm job" in rolloutbench(one, "print(cancel(experiment, ['arm-s0']))")
    said = one.ended(head)
    assert head.returncode == 1 and "was cancelled by root" in said, said
    one.wait(lambda: not one.jobs())
    assert not one.journal()


@pytest.mark.promise("a-job-that-an")
def test_the_running_job_of_an_earlier_release_is_waited_for_by_its_name(run):
    """Two jobs never train one run, whoever submitted them; a waiting one of that kind ends before it trains."""
    one = run(steps=5)
    one.run.mkdir(parents=True)
    for file, value in (("job.json", {"job": 1}), ("jobs/1/job.json", {"cluster": "slurm", "name": "arm-s0.old"})):
        (one.run / file).parent.mkdir(parents=True, exist_ok=True)
        (one.run / file).write_text(json.dumps(value))
    one.cluster.run("sbatch", "-p", "cpu", "-J", "arm-s0.old", "--wrap=sleep 600")
    head = one.start()
    one.wait_for_words(head, "was submitted by an earlier release; waiting for its end (`scancel ")
    assert " waiting " in status(one) or " running " in status(one)
    old = one.cluster.jobs("arm-s0.old")[0]["id"]
    one.cluster.run("scancel", old)
    one.finish(head)
    assert one.submitted() == 1


# Names, clocks, identities ----------------------------------------------------------------------------------------


@pytest.mark.promise("foreign-comments-and-a")
def test_a_sites_comment_with_a_bar_hides_no_waiting_job(run, tmp_path):
    one = run(head_env=fake(tmp_path, "sbatch", '"$real" --comment="project|7 job=3" "$@"'))
    one.cluster.run("sbatch", "-p", "h100", "-N2", "--gres=gpu:h100:8", "--wrap=sleep 25")
    one.finish(one.start())
    assert one.submitted() == 1


@pytest.mark.promise("foreign-comments-and-a")
def test_a_head_whose_clock_was_ahead_hides_no_end_from_the_next(run, faults):
    one = run(steps=1000, env=SLOW, head_env={"LD_PRELOAD": str(faults), "RB_CLOCK_S": "3600"})
    head = one.start(2)
    head.kill()
    one.head_env = {name: value for name, value in one.head_env.items() if name not in ("LD_PRELOAD", "RB_CLOCK_S")}
    again = one.start()
    one.wait_for_words(again, "attaching")
    one.cluster.run("scancel", one.job_id())
    said = one.ended(again)
    assert "was cancelled by root" in said


# Smaller ones -----------------------------------------------------------------------------------------------------


@pytest.mark.promise("probing-signals-a-slow")
def test_a_signal_that_somebody_sends_to_look_kills_no_watcher(run):
    one = run(steps=12, env={"STAND_IN_WAIT": "2"})
    head = one.start(2)
    one.cluster.run("scancel", "--signal=USR1", one.job_id())
    for process in one.processes():
        if "workflow.job.begin" in process.info["cmdline"] and process.name() != "srun":
            process.send_signal(signal.SIGHUP)
    one.go()
    one.finish(head)
    assert len(one.attempts()) == 1


@pytest.mark.promise("probing-signals-a-slow")
def test_a_slow_scontrol_stops_no_heartbeat(run, tmp_path):
    """The first answer comes after the next beat, and not before."""
    beat, asked, told = tmp_path / "results/experiment/runs/arm-s0/attempts/1/heartbeat", tmp_path / "a", tmp_path / "t"
    waits = f"touch {asked}; until [ {beat} -nt {asked} ]; do sleep 0.2; done; touch {told}"
    slow = fake(tmp_path, "scontrol", f'if [ "$1" = show -a ! -e {told} ]; then {waits}; fi; exec "$real" "$@"')
    one = run(steps=5, env={"STAND_IN_WAIT": "2", "STAND_IN_SAVE": "100"}, head_env=slow)
    head = one.start(2)
    one.cluster.run("scancel", "--signal=USR2", one.job_id())
    one.wait(told.is_file)
    one.release()
    one.finish(head)


@pytest.mark.promise("probing-signals-a-slow")
def test_a_daemon_that_sheds_its_parents_and_its_environment_ends_with_the_attempt(run):
    one = run(env={"STAND_IN": "daemon"})
    one.finish(one.start())
    left = f"left-{one.folder.name}"
    one.wait(lambda: not _processes_with(left))


def _processes_with(word):
    every = psutil.process_iter(["cmdline"])
    return [process for process in every if word in " ".join(process.info["cmdline"] or ())]
