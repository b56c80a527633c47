"""What other projects and their robots expect of a repository of a Snakemake workflow."""

import re

import yaml

from .importing import ROOT


def read(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_workflow_catalog_finds_what_it_needs():
    """For its list, and for "standardized usage"; `make check-catalog` lints and looks at the format as it does."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8").lower()
    assert "snakemake" in readme and "workflow" in readme
    assert (ROOT / "workflow" / "Snakefile").is_file() and list(ROOT.glob("rules/*.smk"))
    assert (ROOT / "config" / "README.md").is_file()
    usage = read(".snakemake-workflow-catalog.yml")["usage"]
    assert {"desc", "flags"} <= set(usage["mandatory-flags"])
    assert {"conda", "apptainer", "apptainer+conda", "report"} == set(usage["software-stack-deployment"])


def test_continuous_integration_runs_what_a_person_runs():
    jobs = read(".github/workflows/ci.yml")["jobs"]
    run = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert "bash .ci/run" in run
    made = [word for line in run for word in re.findall(r"^make ([\w-]+)$", line)]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert made and all(re.search(rf"^{name}:", makefile, re.MULTILINE) for name in made)


def test_a_log_that_is_read_wrongly_is_reported_with_what_its_test_needs():
    asked = read(".github/ISSUE_TEMPLATE/log-read-wrongly.yml")["body"]
    assert [one["id"] for one in asked] == ["log", "from", "licence", "command", "right"]
    assert all(one["validations"]["required"] for one in asked)
