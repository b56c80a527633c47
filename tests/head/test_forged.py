"""What a launcher, a job or a command obeys is this user's alone: what another user has put there is refused."""

import contextlib
import json
import os
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from common.errors import UserError
from common.files import write_json
from tests.head.other_user import GROUP, OTHER, other
from tests.job.run_bench import ROOT, RunBench, task_setup
from tests.patience import run
from tests.programs import executable
from tests.quick_site import QuickSite
from tests.stacks.test_found import there
from workflow.job.machine_locks import FOLDER_VARIABLE, locks_folder
from workflow.job.rendezvous import PeerStatus, RendezvousError
from workflow.runs.paths import RunPaths

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can write another user's file"),
    pytest.mark.promise("what-a-launcher-a"),
]

LOCK = "import sys; from workflow.runs.locks import lock_experiment; lock_experiment(sys.argv[1])"
MOVE = """
print(os.access(folder.parent, os.W_OK))
sys.exit(report_errors(lambda: folder.rename(f"{folder}-moved")))
"""
ASK = """
import sys
from pathlib import Path
from common.messages import report_errors
from common.ownership import obey_only_own_files
from workflow.slurm.shared_queue import ask
obey_only_own_files()
sys.exit(report_errors(lambda: print(ask(Path(sys.argv[1]), 0.0))))
"""


def python(*words, cwd=ROOT, **env):
    return run([sys.executable, *map(str, words)], 120, cwd=cwd, env={**os.environ, **env})


def rolloutbench(folder, *words, env=None):
    return run([str(Path(sys.executable).with_name("rolloutbench")), *words], 120, cwd=folder, env=env)


def refused(done, *told):
    """Whether a program has refused in one line, which has these words."""
    lines = [line for line in done.stderr.splitlines() if "error: " in line]
    return done.returncode != 0 and len(lines) == 1 and all(word in lines[0] for word in told)


def writable(folder):
    """The folders and files below that others can write."""
    found = [folder, *folder.rglob("*")]
    return [path for path in found if not path.is_symlink() and path.stat().st_mode & 0o022]


@pytest.fixture(scope="module")
def trained():
    """A finished run, whose done.json is gone: its launcher would look at it again. Each test leaves it as it was."""
    folder = Path(tempfile.mkdtemp(prefix="rbu"))
    one = RunBench(folder)
    try:
        assert one.launch().returncode == 0
        (one.run / "done.json").unlink()
        yield one
    finally:
        one.end()
        shutil.rmtree(folder)


@contextlib.contextmanager
def given_away(*paths, mode=None):
    """Files or folders as another user's, or with rights by which another could have written them."""
    before = [path.stat() for path in paths]
    for path in paths:
        path.chmod(mode) if mode else os.chown(path, OTHER, -1)
    yield
    for path, found in zip(paths, before, strict=True):
        os.chown(path, found.st_uid, -1)
        path.chmod(stat.S_IMODE(found.st_mode))


@contextlib.contextmanager
def put_aside(*paths):
    """Without these files; what has come in their place goes."""
    for path in paths:
        path.rename(path.with_suffix(".aside"))
    yield
    for path in paths:
        path.with_suffix(".aside").rename(path)


@pytest.mark.full("a launcher for each file")
def test_a_launcher_does_not_obey_a_file_that_another_could_have_written(trained):
    before, done = trained.journal(), trained.run / "attempts" / "1" / "done.json"
    for name in ("attempts/1/attempt.json", "attempts/1/done.json", "order.json", "end.json"):
        for mode in (None, 0o664):
            with given_away(trained.run / name, mode=mode), put_aside(*[done] * ("done" not in name)):
                said = trained.launch()
            assert refused(said, f"{trained.run / name}", "obeyed"), (name, said.stderr)
    assert trained.journal() == before


def test_a_launcher_works_in_no_folder_of_another_user_and_with_no_inputs_that_others_can_write(trained):
    for folder in [trained.run, *trained.run.parents][:3]:
        with given_away(folder):
            said = trained.launch()
        assert refused(said, f"{folder} belongs to", "give your experiment another name"), said.stderr
    with given_away(experiment := trained.run.parents[1]):
        assert refused(python("-c", LOCK, experiment), f"{experiment} belongs to", "another name")
    with given_away(trained.inputs, mode=0o664):
        assert refused(trained.launch(), f"{trained.inputs} can be written by other users")


def test_a_job_obeys_no_forged_order_and_loads_no_forged_pickle(trained):
    run, before = RunPaths(trained.run), trained.journal()
    pickle = next(run.submission(1).glob("*_submitted.pkl"))
    env = {"SUBMITIT_EXECUTOR": "local", "SUBMITIT_LOCAL_JOB_ID": pickle.name.partition("_")[0]}
    for name in ("order.json", "submitit/1", "", "submitit/1/*_submitted.pkl", "checkpoints/*/*"):
        forged = [*run.folder.glob(name)] if name else [run.folder]
        assert forged
        with put_aside(run.end, trained.run / "attempts" / "1" / "done.json"), given_away(*forged):
            begun = python("-m", "workflow.job.begin", run.submission(1), **env)
            assert begun.returncode != 0 and "belongs to" in begun.stderr and not run.end.exists(), (name, begun.stderr)
    assert trained.journal() == before


def test_slurms_answer_is_taken_from_nobody_else(tmp_path):
    file = RunPaths(tmp_path / "results" / "e" / "runs" / "r").queue
    write_json(file, {"asked": 1.0, "error": None, "jobs": [{"job_id": "99999999"}]})
    os.chown(file, OTHER, -1)
    done = python("-c", ASK, file, PATH="/usr/bin:/bin")
    assert refused(done, str(file), "belongs to") and "99999999" not in done.stdout, done


def test_a_node_listens_to_no_forged_status(tmp_path):
    setup = task_setup(tmp_path, ["a", "b"], 1)
    file = setup.folder / "head.json"
    write_json(file, {"state": "up", "address": "http://6.6.6.6", "machine": "x"})
    assert PeerStatus(setup, 0).read()["state"] == "up"
    os.chown(file, OTHER, -1)
    with pytest.raises(RendezvousError, match="belongs to"):
        PeerStatus(setup, 0).read()


def test_a_run_in_a_groups_results_is_its_users_alone(shared, bench):
    """Snakemake makes the folders with the user's umask, which lets the group write."""
    one = bench(shared)
    one.run.mkdir(parents=True)
    experiment = one.run.parents[1]
    # user::rwx, user:OTHER:rwx, group::rwx, mask::rwx, other::r-x
    entries = ((1, 7, -1), (2, 7, OTHER), (4, 7, -1), (16, 7, -1), (32, 5, -1))
    rights = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    with contextlib.suppress(OSError):  # not every file system has such lists
        os.setxattr(one.run, "system.posix_acl_default", rights)
    assert writable(experiment)
    assert python("-c", LOCK, experiment).returncode == 0
    assert stat.S_IMODE(experiment.parent.stat().st_mode) == 0o3775, "others may make their own, and move only them"
    moved = other(shared, MOVE)
    assert moved.returncode == 1 and moved.stdout == "True\n" and "not permitted" in moved.stderr
    assert one.launch().returncode == 0
    assert not writable(experiment)


def test_who_cannot_keep_the_folder_in_place_is_told(shared):
    (shared / "results").mkdir()
    done = other(shared, "lock_experiment(str(folder))")
    assert done.returncode == 0
    results = shared / "results"
    assert done.stderr.startswith(f"warning: others can write {results}, and could put another folder in place of")
    assert done.stderr.endswith(f"ask root for: chmod +t {results}\n") and len(done.stderr.splitlines()) == 1


def test_a_stop_and_a_cancellation_of_another_user_stop_nothing(trained):
    run, experiment = RunPaths(trained.run), trained.run.parents[1]
    cancelled = experiment / "cancelled.json"
    with put_aside(trained.run / "attempts" / "1" / "done.json", run.end):
        words = {"kind": "cancelled", "by": "mallory", "order": trained.read("order.json")["start"]}
        for file, text in ((run.end, json.dumps(words)), (run.stop, "now"), (cancelled, json.dumps({"by": "mallory"}))):
            file.write_text(text)
            os.chown(file, OTHER, GROUP)
        assert refused(trained.launch(), f"{run.end} belongs to")
        run.end.unlink()
        assert refused(trained.launch(), f"{cancelled} belongs to")
        assert python("-c", LOCK, experiment).returncode == 0, "a new start removes it"
        assert trained.launch().returncode == 0
        (trained.run / "done.json").unlink()


def test_a_group_can_write_nothing_that_the_head_prepares(shared):
    """Neither what this start makes, whatever the umask, nor the folders that an earlier one left open."""
    site = QuickSite(shared)
    subprocess.run(["chmod", "-R", "go-w", shared / ".stacks"], check=True)  # as they are built
    before = shared / "results" / "small" / "logs"
    before.mkdir(parents=True)
    before.chmod(0o2775)
    done = site.snakemake("--until", "inputs", "preflight")
    assert done.returncode == 0, done.stderr
    assert before.is_dir() and not writable(shared / "results" / "small")


def test_a_stack_that_another_user_has_put_where_one_stands_is_not_run(tmp_path):
    evil, ran = tmp_path / "python", tmp_path / "ran"
    executable(evil, f"#!/bin/sh\ntouch {ran}\n")
    recorded = tmp_path / ".stacks" / "mine" / "123456789abc"
    recorded.mkdir(parents=True)
    (recorded / "stack.yaml").write_text(f"trainer: trl\nengine: vllm\nfound_python: {evil}\n")
    (recorded.parent / "current").symlink_to(recorded.name)
    os.lchown(tmp_path / ".stacks", OTHER, GROUP)
    done = rolloutbench(tmp_path, "check")
    assert refused(done, f"{tmp_path / '.stacks'} belongs to") and not ran.exists()


def test_a_link_of_another_user_is_no_experiments_folder(shared):
    """Its target may be the user's own folder, whose figures and tables Snakemake would replace."""
    paper = shared / "paper"
    (paper / "figures").mkdir(parents=True)
    results = shared / "results"
    results.mkdir()
    link = results / "small"
    link.symlink_to(paper)
    os.lchown(link, OTHER, GROUP)
    assert refused(python("-c", LOCK, link), "small belongs to") and [*paper.iterdir()] == [paper / "figures"]
    os.lchown(link, os.geteuid(), GROUP)
    assert python("-c", LOCK, link).returncode == 0, "a link of one's own to another disk"
    link.unlink()
    (link / "logs").mkdir(parents=True)
    log = link / "logs" / "report.log"
    log.symlink_to(paper / "precious")
    os.lchown(log, OTHER, GROUP)
    assert refused(python("-c", LOCK, link), f"{log} belongs to")


def test_a_lock_is_its_users_alone_and_no_link_is_followed(shared, bench):
    """Whoever can open its file can hold it; a link would empty the file that it leads to."""
    one = bench(shared)
    one.run.mkdir(parents=True)
    lock, log, precious = RunPaths(one.run).launcher_lock, one.run / "submit.log", shared / "precious"
    precious.write_text("alias")
    for link, says in ((lock, "is a link"), (lock, "belongs to"), (log, "belongs to")):
        link.symlink_to(precious)
        os.lchown(link, os.geteuid() if says == "is a link" else OTHER, GROUP)
        assert refused(one.launch(), f"{link} {says}") and precious.read_text() == "alias"
        link.unlink()
    lock.touch(0o664)
    assert one.launch().returncode == 0
    locks = [lock, RunPaths(one.run).live_lock]
    assert [stat.S_IMODE(path.stat().st_mode) for path in locks] == [0o600, 0o600]


def test_a_stack_that_others_can_write_is_not_run(shared):
    """What an earlier start, with the umask of a group, has left open: the stack's programs, or a folder far above."""
    site = QuickSite(shared)
    stack = site.config["arms"]["vllm"]["stack"]
    for folder in writable(shared / ".stacks"):
        folder.chmod(0o755)
    programs = next((shared / ".stacks" / stack).iterdir()) / "env" / "bin"
    for folder, start in (
        (programs, site.snakemake),
        (shared / ".stacks", lambda: rolloutbench(shared, "check", "experiment.yaml")),
    ):
        folder.chmod(0o775)
        done = start()
        assert done.returncode and f"chmod -R go-w {folder}" in " ".join((done.stdout + done.stderr).split()), done
        folder.chmod(0o755)
    assert not site.jobs.exists()


def test_what_is_made_of_a_stack_is_its_users_alone(shared):
    words = ("-m", "workflow.stacks", "found", "mine", "--python", there(shared, "trl==1.16.0"))
    done = python(*words, cwd=shared, PYTHONPATH=str(ROOT))
    assert (shared / ".stacks" / "mine" / "current").exists(), done.stderr
    assert not writable(shared / ".stacks")


@pytest.mark.parametrize(
    ("at", "owner"),
    [
        ("profiles/default", OTHER),
        pytest.param("default", OTHER, marks=pytest.mark.full("a start of Snakemake")),
        pytest.param("profiles/default", os.geteuid(), marks=pytest.mark.full("a start of Snakemake")),
    ],
)
def test_a_workflow_profile_is_read_only_if_it_is_the_users_own(tmp_path, at, owner):
    """Snakemake reads it where one stands, unasked, and its resources are Python."""
    site, ran = QuickSite(tmp_path), tmp_path / "ran"
    profile = tmp_path / at / "config.yaml"
    profile.parent.mkdir(parents=True)
    resource = f"mem_mb=__import__('pathlib').Path('{ran}').touch() or 1000"
    profile.write_text(json.dumps({"default-resources": [resource]}))
    os.chown(profile, owner, -1)
    words = site.command("-n")
    experiment, snakefile = words[words.index("--configfile") + 1], words[words.index("--snakefile") + 1]
    done = rolloutbench(tmp_path, "run", experiment, "-n", "-s", snakefile, env=site.env)
    assert ran.exists() == (owner != OTHER) and ("belongs to" in done.stderr) == (owner == OTHER), done.stderr


@pytest.mark.parametrize("name", ["attempts/1/metrics.jsonl", "attempts/1/attempt.json", ".live.lock"])
def test_a_pipe_in_anothers_results_does_not_hold_up_status(shared, name):
    os.umask(0o022)
    run = shared / "results" / "experiment" / "runs" / "arm-s0"
    write_json(run / "attempts" / "1" / "attempt.json", {"fingerprint": "f" * 64, "host": "h"})
    write_json(run / "order.json", {"fingerprint": "f" * 64, "count_from": 1, "cluster": "local", "folder": str(run)})
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    done = other(shared, "sys.exit(report_errors(lambda: show_status(lambda: experiment, None)))")  # within two minutes
    assert ("no regular file" in done.stderr) == (done.returncode == 1), done


def test_a_folder_of_locks_that_another_user_has_made_is_told_with_what_helps(tmp_path):
    for make in (Path.mkdir, Path.touch, lambda path: path.symlink_to("nowhere")):
        make(folder := tmp_path / make.__name__)
        os.lchown(folder, OTHER, GROUP)
        with pytest.raises(UserError, match=f"It is {OTHER}'s: remove it if it is yours, or name another one by ROLL"):
            locks_folder({FOLDER_VARIABLE: str(folder)})
