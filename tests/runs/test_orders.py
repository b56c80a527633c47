"""Whose an order is, when an attempt is silent, and files that cannot be read."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from common import retry
from common.files import write_text
from common.retry import retry_io
from workflow.runs import pulse
from workflow.runs.orders import order_of
from workflow.runs.paths import RunPaths
from workflow.runs.pulse import HeartbeatWatch

from .make_runs import MadeRun

pytestmark = pytest.mark.promise("invariant-2")


def test_a_copy_of_the_results_has_no_order(tmp_path):
    MadeRun(tmp_path / "results" / "e", "a").job()
    shutil.copytree(tmp_path / "results", tmp_path / "copy")
    assert order_of(RunPaths(tmp_path / "results" / "e" / "runs" / "a"))
    assert not order_of(RunPaths(tmp_path / "copy" / "e" / "runs" / "a"))


def test_a_heartbeat_is_compared_with_itself_alone(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(pulse.time, "monotonic", lambda: now)
    made = MadeRun(tmp_path, "a").attempt()
    beat = made.paths.attempt(1).heartbeat
    os.utime(beat, (9e9, 9e9))  # a clock that is far ahead
    watch = HeartbeatWatch(made.paths.attempt(1))
    assert not watch.quiet()
    now += 14
    assert not watch.quiet()
    now += 1
    assert watch.quiet()
    os.utime(beat, (1.0, 1.0))
    assert not watch.quiet()
    made.paths.attempt(1).exit.write_text("{}")
    assert watch.quiet()


def test_files_that_cannot_be_read_are_no_silence(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(pulse.time, "monotonic", lambda: now)
    made = MadeRun(tmp_path, "a").attempt()
    watch = HeartbeatWatch(made.paths.attempt(1))
    watch.quiet()
    now += 60
    with monkeypatch.context() as refused:
        refused.setattr(
            pulse, "modified", lambda file: (_ for _ in ()).throw(OSError(errno.ESTALE, "Stale file handle"))
        )
        assert not watch.quiet()
    assert not watch.quiet(), "the watch begins anew"


def test_what_the_file_system_refuses_is_tried_again_and_said_once(capsys, monkeypatch):
    monkeypatch.setattr(retry.time, "sleep", lambda seconds: None)
    errors = [OSError(errno.ESTALE, "Stale file handle")] * 3

    def read():
        if errors:
            raise errors.pop()
        return "content"

    assert retry_io(read, "the run's files") == "content"
    assert capsys.readouterr().err.count("the run's files: [Errno 116] Stale file handle; trying again") == 1
    with pytest.raises(FileNotFoundError):
        retry_io(lambda: Path("/nowhere").read_text(), "it")
    errors = [OSError(errno.EIO, "Input/output error")] * 3
    with pytest.raises(OSError, match="Input/output"):
        retry_io(read, "it", patience_s=0.1)


def test_a_written_file_has_the_rights_that_the_umask_leaves_which_no_other_thread_finds_changed(tmp_path, monkeypatch):
    before = os.umask(0o027)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(os, "umask", lambda mask: pytest.fail("it is that of all threads"))
        write_text(tmp_path / "file", "")
    os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
