"""What finished runs cost again: nothing. Real Snakemake, launchers and jobs; the stacks' Python is a stand-in."""

import contextlib
import copy
import json
import re
import signal

import psutil
import pytest

from . import patience
from .quick_site import QuickSite
from .site_folder import ROOT


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A site after a first, whole run: two arms, one seed."""
    site = QuickSite(tmp_path_factory.mktemp("site"))
    done = site.snakemake()
    assert done.returncode == 0, done.stdout + done.stderr
    return site


@pytest.fixture
def site(trained):
    """That site with its first configuration; no test leaves another one."""
    before = copy.deepcopy(trained.config)
    yield trained
    trained.config = before


def rules(done):
    """The rules of the jobs that began or would, in their order."""
    assert done.returncode == 0, done.stderr
    return re.findall(r"^(?:local)?(?:rule|checkpoint) (\w+):$", done.stdout + done.stderr, re.MULTILINE)


def verdicts(site):
    """The verdicts of its stacks' checks."""
    return list(site.folder.glob(".stacks/*/*/verify-*.json"))


def test_again_there_is_nothing_to_do_though_a_stack_was_verified_again(site):
    """`build` writes a new verify.json then, which the training rule has among its inputs."""
    for verdict in site.folder.glob(".stacks/*/*/verify*.json"):
        verdict.write_bytes(verdict.read_bytes())
    again = site.snakemake()
    assert again.returncode == 0 and "Nothing to be done" in again.stderr, again.stderr


@pytest.mark.promise("a-damaged-or-deleted", "a-finished-run-is")
def test_damaged_and_lost_files_are_told_and_mended_without_a_training(site):
    """Not hidden behind a report that is there; and if Snakemake is told to train."""
    before, runs = site.trained(), [site.results / "runs" / f"{arm}-s0" for arm in ("vllm", "transformers")]
    (runs[0] / "done.json").write_text('{"run')
    (runs[1] / "done.json").unlink()
    for run in runs:
        (run / "steps.parquet").unlink()
    mended = site.snakemake("--forcerun", "train", "--until", "collect")
    assert mended.returncode == 0 and site.trained() == before, mended.stderr
    for run in runs:
        assert f"{run.name}: already finished (attempt 1)" in mended.stderr, mended.stderr
        assert json.loads((run / "done.json").read_text())["attempt"] == 1
        assert (run / "steps.parquet").exists()


@pytest.mark.promise("a-changed-report-setting")
def test_a_changed_report_setting_retrains_nothing(site):
    site.config["warmup_steps"] = 2
    planned = rules(site.snakemake("--dry-run"))
    assert "report" in planned and "train" not in planned


@pytest.mark.promise("a-changed-workload-lock")
def test_a_changed_workload_retrains_every_run_of_it(site):
    site.config["workload"]["temperature"] = 0.7
    assert rules(site.snakemake("--dry-run")).count("train") == 2


def test_a_changed_arm_is_checked_and_trained_and_no_other(site):
    site.config["arms"]["vllm"]["env"] = {"VLLM_LOGGING_LEVEL": "WARNING"}
    dry = rules(site.snakemake("--dry-run"))
    assert "preflight" in dry and dry.count("train") == 1
    made = rules(site.snakemake("--until", "train"))
    assert [rule for rule in made if rule in ("preflight", "train")] == ["preflight", "train"]
    assert site.attempts("vllm-s0") == [1, 2] and site.attempts("transformers-s0") == [1]


def test_changed_checks_are_run_again_by_snakemake_itself_and_train_nothing(site):
    site.config["arms"]["vllm"]["env"] = {"VLLM_LOGGING_LEVEL": "WARNING"}
    today, then = verdicts(site)[0].name, "verify-0123456789ab.json"
    renamed = [verdict.rename(verdict.with_name(then)) for verdict in verdicts(site) if verdict.name == today]
    site.config["workload"]["temperature"] = 0.7
    planned = rules(site.snakemake("--dry-run"))
    assert "stack_checks" in planned and "stack" not in planned
    # Its metadata say that the runs were trained when these were the checks.
    site.config["workload"]["temperature"] = 1.0
    records = [one for one in (site.folder / ".snakemake" / "metadata").rglob("*") if one.is_file()]
    changed = [record for record in records if today in record.read_text()]
    assert changed
    for record in changed:
        record.write_text(record.read_text().replace(today, then))
    assert "train" not in rules(site.snakemake("--dry-run"))
    for verdict in renamed:
        verdict.rename(verdict.with_name(today))


def test_an_edited_package_is_refused_before_anything_is_submitted(site):
    (final, *_) = sorted(site.folder.glob(".stacks/*/*"))
    record = final / "env/lib/python3.11/site-packages/trl-1.16.0.dist-info/RECORD"
    record.parent.mkdir(parents=True)
    record.write_text("trl.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n")
    code, before = record.parents[1] / "trl.py", site.trained()
    code.write_text("print('where am I?')\n")
    site.config["workload"]["temperature"] = 0.7
    refused = site.snakemake()
    code.unlink()
    record.unlink()
    assert refused.returncode != 0 and site.trained() == before
    assert f"files of stack {final.parent.name} have changed since it was verified: trl: trl.py" in refused.stderr


def test_bad_input_is_one_message_and_loses_nothing(site):
    before = site.attempts("vllm-s0")
    site.config["workload"]["data"] = {"source": str(site.folder / "data.jsonl"), "prompt_column": "q"}
    (site.folder / "data.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    wrong = site.snakemake()
    assert wrong.returncode != 0
    assert "Traceback" not in wrong.stdout + wrong.stderr
    assert "question" in wrong.stderr and "prompt_column" in wrong.stderr
    assert site.attempts("vllm-s0") == before
    assert (site.results / "runs" / "vllm-s0" / "attempts" / "1" / "done.json").exists()


def test_after_a_touch_under_another_configuration_the_next_start_trains(site):
    """Snakemake records the new parameters beside the old run; the run's own files say what it trained."""
    before = site.trained()
    site.config["workload"]["steps"] = 5
    site.snakemake("--touch")
    again = site.snakemake("--until", "train")
    assert again.returncode == 0 and site.trained() == before + 2, again.stderr
    assert json.loads((site.results / "runs" / "transformers-s0" / "done.json").read_text())["attempt"] == 2


def test_a_run_that_is_not_in_the_plan_is_no_target(site):
    done = site.snakemake("--dry-run", str(site.results.relative_to(site.folder) / "runs" / "vllm-s9" / "done.json"))
    assert done.returncode == 1 and "MissingRuleException" in done.stdout + done.stderr


def test_no_job_of_seconds_waits_in_a_queue():
    """What takes longer is Slurm's: environments, data, settings, the comparison."""
    text = "".join(file.read_text() for file in (ROOT / "rules").glob("*.smk"))
    parts = re.split(r"^ *(?:rule|checkpoint)\b ?", text, flags=re.MULTILINE)[1:]
    queued = {part.partition(":")[0] for part in parts if "localrule: True" not in part}
    assert queued == {"stack", "stack_checks", "inputs", "settings", "comparison"}


@pytest.mark.promise("a-killed-run-resumes", "a-killed-snakemake-leaves")
@pytest.mark.full("a workflow is killed and started again; tests/head kills launchers and their jobs")
def test_killed_in_the_middle_the_next_start_finishes_what_is_missing(tmp_path):
    """Snakemake and all that it started is killed in the first of two runs, behind its second step."""
    site = QuickSite(tmp_path)
    site.config["shared"] = {"trl": {"env": {"STAND_IN_WAIT": "2"}}}
    runs = [site.results / "runs" / f"{arm}-s0" for arm in ("transformers", "vllm")]
    head = site.start()

    def waiting():
        return [run for run in runs if (run / "journal").exists() and (run / "journal").read_text().count("\n") == 2]

    patience.until(waiting, head.pid)
    own = [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(one.info["cmdline"] or ())]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in own:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
    head.wait()
    (killed,) = waiting()
    (other,) = (run for run in runs if run != killed)
    other.mkdir(parents=True, exist_ok=True)
    (other / "go").touch()
    finished = site.snakemake("--until", "collect")
    assert finished.returncode == 0 and "resumes from a checkpoint" in finished.stderr, finished.stderr
    assert (site.attempts(killed.name), site.attempts(other.name)) == ([1, 2], [1])
    steps = [line.split()[:2] for line in (killed / "journal").read_text().splitlines()]
    assert steps == [["1", "1"], ["1", "2"], ["2", "3"], ["2", "4"]]
