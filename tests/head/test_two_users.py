"""Two users on one folder of results: the second one is told whose a run is, and neither harms nor waits for it."""

import os

import pytest

from ..programs import executable
from .other_user import OTHER, in_group, other

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
    pytest.mark.promise("a-second-user-on"),
]


@pytest.mark.full("processes that are struck")
@pytest.mark.parametrize("umask", [0o002, 0o077])
def test_the_second_user_is_told_whose_the_run_is_and_harms_nothing(shared, bench, umask):
    (shared / "results" / "experiment" / "runs" / "arm-s0").mkdir(parents=True)  # as snakemake makes them
    os.umask(umask)
    one = bench(shared, env={"STAND_IN_WAIT": "2"})
    head = one.start(2)
    start = "sys.exit(workflow.head.launcher.main(sys.argv[2:]))"
    refused = other(shared, start, *one.command()[3:])
    assert refused.returncode == 1
    assert "belongs to root" in refused.stderr and len(refused.stderr.splitlines()) == 1, refused.stderr
    looked = other(shared, "sys.exit(report_errors(lambda: show_status(lambda: experiment, None)))")
    if umask == 0o002:
        assert looked.returncode == 0 and " running " in looked.stdout
    else:
        assert looked.returncode == 1 and "Permission denied" in looked.stderr
    cancelled = other(shared, "sys.exit(report_errors(lambda: print(cancel(experiment, []))))")
    assert cancelled.returncode == 1 and "belongs to root, and only root can cancel" in cancelled.stderr
    one.go()
    assert one.ended(head) and head.returncode == 0
    assert one.journal() == [(1, step) for step in range(1, 6)]
    again = other(shared, start, *one.command()[3:])
    assert again.returncode == 1 and "belongs to root" in again.stderr


def test_two_users_ask_slurm_each_for_their_own_jobs_in_one_results_folder(shared):
    (shared / "results").mkdir()
    executable(shared / "bin" / "squeue", "echo down >&2; exit 1")
    # As a head does, whose umask lets nobody else write.
    code = "os.umask(0o022); at = RunPaths(folder.with_name(f'of-{os.getuid()}') / 'runs' / 'a').queue"
    code += "; at.parent.mkdir(exist_ok=True); print(ask(at, time.time()).error, at.stat().st_uid)"
    for user in (0, OTHER):
        done = in_group(shared, code, user=user, PATH=f"{shared / 'bin'}:{os.environ['PATH']}")
        assert done.stdout.split() == ["down", str(user)], done.stderr
