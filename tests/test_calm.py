"""The logger of `make quickstart`: a line for a job, a failure with its log, and everything in Snakemake's own log."""

import sys
from pathlib import Path

from .importing import ROOT
from .patience import run

WORKFLOW = """
rule all:
    input: "good-a", "bad-b", "collected"

rule collect:
    output: "collected"
    shell: "touch {output}"

rule good:
    output: "good-{name}"
    shell: "echo done >&2; touch {output}"

rule bad:
    output: "bad-{name}"
    log: "{name}.log"
    shell: "echo it broke | tee {log} >&2; exit 1"

onerror:
    print("error: it broke, as its log says")
"""


def test_a_line_for_each_job_and_the_reason_of_a_failure(tmp_path):
    (tmp_path / "Snakefile").write_text(WORKFLOW)
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from workflow.commands.start_runs import snakemake; "
    start += "snakemake(sys.argv[1:])"
    command = [sys.executable, "-c", start, "--cores", "1", "--keep-going", "--logger", "calm"]
    done = run(command, 300, cwd=tmp_path)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert {"good a", "bad b", "done", "it broke", "bad failed; log: b.log"} <= set(lines), done.stderr
    assert done.stdout.splitlines()[-1] == "error: it broke, as its log says"
    assert len(lines) < 15 and not [line for line in lines if "jobid" in line or line in ("all", "collect")], (
        done.stderr
    )
    assert not [line for line in lines if "CalledProcessError" in line or "did not complete" in line], done.stderr
    (named,) = [line.split(": ")[1] for line in lines if line.startswith("Complete log")]
    log = Path(named).read_text(encoding="utf-8")
    assert "rule good:" in log and "jobid: " in log and "Error in rule bad:" in log and "CalledProcessError" in log
