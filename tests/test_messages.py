"""Messages to the user."""

import errno
import os

from common.messages import did_you_mean, errors_since, report_errors


def test_only_errors_of_this_start_are_printed_again(tmp_path):
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "launcher.log").write_text("error: a was killed\nlog: x\n  | a line\n  | last line\n")
    (tmp_path / "inputs.log").write_text("inputs: reading\nerror: no column q\n")
    (tmp_path / "fine.log").write_text("no error: here\n")
    (tmp_path / "old.log").write_text("error: long mended\n")
    os.utime(tmp_path / "old.log", (1, 1))
    (tmp_path / "gone.log").symlink_to("nowhere")  # as one that is removed between a listing and a look
    # A log's lines were shown when the run ended; the last is most often the reason.
    assert errors_since([tmp_path], began=1000.0) == [
        "error: no column q",
        "error: a was killed\nlog: x\n  | last line",
    ]


def test_only_a_similar_name_is_suggested():
    assert did_you_mean("vlm", ["vllm", "sglang"]) == " (did you mean vllm?)"
    assert did_you_mean("zzz", ["vllm", "sglang"]) == ""


def test_a_file_without_permission_is_reported_with_its_owner(capsys):
    def refused():
        raise PermissionError(errno.EACCES, "Permission denied", "/proc/1/locked")

    assert report_errors(refused) == 1
    stderr = capsys.readouterr().err
    assert stderr.startswith("error: /proc/1/locked: Permission denied; ") and "Errno" not in stderr, stderr
