"""A user's script goes through the real launcher: started once, watched, stopped, resumed, and read from its log."""

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from analysis.planned import planned
from analysis.report.content import content_of
from analysis.runs import read_run
from common.errors import UserError
from common.files import fingerprint_of
from tests.event_files import write_events
from trainers.command.driver import keep, prepared
from workflow.cli import main
from workflow.commands.cancel import cancel
from workflow.config.plan import plan_runs, stack_facts
from workflow.config.reading import parse_config
from workflow.launch_scripts.log import collect
from workflow.runs.experiment import ExpectedRun, Experiment
from workflow.runs.paths import RunPaths

from .script_bench import CONSOLE, ScriptBench

SCRIPT = """#!/bin/bash
set -euo pipefail
cd "$(dirname "$0")"
export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567
python3 -m trainer.main rollout.name=vllm "$@" 2>&1 | tee train.log
"""


@pytest.fixture
def bench(tmp_path):
    made = []

    def make(script=SCRIPT, **options):
        made.append(ScriptBench(tmp_path, script, **options))
        return made[-1]

    yield make
    for one in made:
        one.go()
        one.end()


def test_a_script_runs_as_it_is_and_its_log_says_what_it_was(bench):
    one = bench(words=["rollout.name=sglang"])
    result = one.launch()
    assert result.returncode == 0, result.stderr + one.console()
    assert one.calls() == [f"{one.folder}/bin/python3 -m trainer.main rollout.name=sglang"]
    assert (one.folder / "project" / "train.log").is_file(), "it starts in its own folder"
    assert one.done()["steps"] == 6
    assert "already finished (attempt 1)" in one.launch().stderr
    assert len(one.calls()) == 1

    copies = [one.run / "attempts" / "1" / "run.sh", *one.run.glob("script-*")]
    assert [copy.stat().st_mode & 0o777 for copy in copies] == [0o600, 0o600]
    secret = b"0123456789abcdef0123456789abcdef01234567"
    assert {path for path in one.run.rglob("*") if path.is_file() and secret in path.read_bytes()} == set(copies)
    assert collect(RunPaths(one.run), one.run / "steps.parquet")
    run, _ = read_run(one.folder / "results" / "experiment", "a-s0", None)
    assert (run.spec["trainer"], run.imported) == ("verl", True)
    places = pq.read_table(one.run / "steps.parquet", columns=["source_file", "source_line"]).to_pydict()
    assert set(places["source_file"]) == {"attempts/1/console.log"} and min(places["source_line"]) > 0


def test_a_stopped_script_ends_with_all_its_processes(bench):
    one = bench("#!/bin/bash\nsleep 1234 & python3 train.py\n", console=f"{CONSOLE}\nWAIT\n")
    head = one.start()
    one.wait(lambda: "step:" in one.console())
    head.send_signal(signal.SIGINT)
    one.ended(head)
    assert head.returncode == 1
    assert "was stopped; start again: its script begins anew" in one.said(head), one.said(head)
    assert one.read("attempts", "1", "exit.json")["last_step"] == 6, "what it had logged counts"
    assert not one.own_processes()
    one.go()
    again = one.launch()
    assert again.returncode == 0, again.stderr
    assert one.done()["attempt"] == 2
    assert collect(RunPaths(one.run), one.run / "steps.parquet")
    assert set(pq.read_table(one.run / "steps.parquet")["source_file"].to_pylist()) == {"attempts/2/console.log"}


def test_the_lives_of_a_script_that_resumes_count_together(bench):
    lines = CONSOLE.splitlines()
    third = next(number for number, line in enumerate(lines) if "step:3 " in line)
    one = bench(console="\n".join([*lines[: third + 1], "WAIT"]), resume="script")
    head = one.start()
    one.wait(lambda: "step:3 " in one.console())
    mine = Experiment("experiment", one.run.parents[1], [ExpectedRun("a-s0", one.spec["fingerprint"])])
    assert cancel(mine, ["a-s0"]) == ["a-s0: asked to stop by SIGTERM: a script has no step to wait for"]
    assert "start again: its script continues by itself" in one.ended(head)
    (one.folder / "console").write_text("\n".join(lines[third + 1 :]))
    one.go()
    result = one.launch()
    assert result.returncode == 0, result.stderr
    assert (one.done()["first_step"], one.done()["last_step"]) == (1, 6)
    assert collect(RunPaths(one.run), one.run / "steps.parquet")
    assert set(pq.read_table(one.run / "steps.parquet")["step"].to_pylist()) == set(range(1, 7))


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo loading\necho no such model >&2\nexit 3\n", ["no such model", "the script ended with exit code 3"]),
        ("python3 train.py > train.log &\n", ["processes running (/bin/bash ", "the line: wait"]),
        ("echo Submitted batch job 77\n", ["it submits itself"]),
    ],
)
def test_a_script_that_has_not_trained_says_why(bench, script, told):
    one = bench(f"#!/bin/bash\n{script}", console="WAIT\n")
    result = one.launch()
    assert result.returncode == 1
    said = " ".join(result.stderr.replace("\n  | ", " ").split())
    assert all(words in said for words in told), result.stderr
    assert "Traceback" not in said and not (one.run / "done.json").exists()


def test_a_training_whose_log_could_not_be_read_is_not_started_again(bench):
    one = bench(console="nothing that is known")
    said = " ".join(one.launch().stderr.replace("\n  | ", " ").split())
    assert "exit code 0, and its log has no training steps" in said and "nothing is lost" in said
    assert "its first line begins 'nothing that is known'" in said
    (one.run / "attempts" / "1" / "console.log").write_text(CONSOLE)
    result = one.launch()
    assert result.returncode == 0, result.stderr
    assert (len(one.calls()), one.done()["attempt"], one.done()["steps"]) == (1, 2, 6)
    assert one.done()["started"] < one.done()["finished"] < one.read("attempts", "2", "attempt.json")["started"]


def test_a_silent_script_hangs(bench):
    one = bench(console="WAIT\n", limits=("first_step_s=1.5",))
    result = one.launch()
    assert result.returncode == 1
    assert "hung" in result.stderr and "it logged nothing for" in result.stderr, result.stderr


def test_a_script_changed_after_its_plan_is_refused_and_after_its_submission_is_not_read(bench):
    one = bench(console="WAIT\n" + CONSOLE)
    text = one.script.read_text()
    one.script.write_text(text + "# another\n")
    result = one.launch()
    assert "changed since the run was planned" in result.stderr and not one.calls()
    one.script.write_text(text)
    head = one.start()
    one.wait(one.calls)
    one.script.write_text("exit 1\n")
    one.go()
    one.ended(head)
    assert head.returncode == 0, one.said(head)


def test_a_script_has_the_users_environment_and_its_own_part_of_a_log(bench):
    """The arm's programs come first. The next run writes the same log; of one that grows only the new part is this
    run's. A word that the log contradicts is a warning, as where a later word of the script wins."""
    word, lr = "actor_rollout_ref.rollout.name", "actor_rollout_ref.actor.optim.lr"
    printed = f"+ python3 -m verl.trainer.main_ppo {word}=vllm {lr}=1e-06 trainer.n_gpus_per_node=8\n"
    console = printed + CONSOLE
    script = "#!/bin/bash\nenv > env.txt\ncommand -v python > which.txt\npython train.py >> logs/run.log\n"
    one = bench(script, console=console, head_env={"PYTHONPATH": "/mine", "PYTHONHOME": "", "VIRTUAL_ENV": "/other"})
    project, venv = one.folder / "project", one.folder / "venv"
    (project / "logs").mkdir()
    (project / "logs" / "run.log").write_text(console)
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").touch()
    (venv / "bin" / "python").symlink_to(one.folder / "bin" / "python")
    (venv / "lib" / "python3.11" / "site-packages" / "vllm-0.11.0.dist-info").mkdir(parents=True)
    # One number may be written in two ways.
    words = ["MODE=x", f"{word}=sglang", f"{lr}='1e-6'"]
    one.spec = one.plan(python=str(venv / "bin" / "python"), words=words, read=["logs/*.log"]).runs["a-s0"].spec
    one.spec["engine"] = "sglang"
    one.spec["fingerprint"] = fingerprint_of(one.spec)
    assert one.launch().returncode == 0, one.state()

    env = dict(line.split("=", 1) for line in (project / "env.txt").read_text().splitlines() if "=" in line)
    assert (env["VIRTUAL_ENV"], env["PYTHONPATH"], env["MODE"]) == (str(venv), "/mine", "x")
    assert env["PATH"].split(":")[0] == str(venv / "bin")
    controllers = str(Path(sys.executable).parent)
    assert controllers not in env["PATH"].split(":"), "the controller's programs are not the user's"
    assert (env["ROLLOUTBENCH_SEED"], env["PYTHONUNBUFFERED"]) == ("0", "1") and "PYTHONHOME" not in env
    assert (project / "which.txt").read_text().strip() == str(venv / "bin" / "python")
    assert one.done()["versions"] == {"vllm": "0.11.0"} and one.done()["steps"] == 6
    (kept,) = [path for path in (one.run / "attempts" / "1" / "read").rglob("*") if path.is_file()]
    assert kept.read_text() == console

    assert collect(RunPaths(one.run), one.run / "steps.parquet")
    run, verdicts = read_run(one.folder / "results" / "experiment", "a-s0", None)
    told = [verdict.text for verdict in verdicts if verdict.code == "word-without-effect"]
    assert run.spec["engine"] == "vllm" and len(told) == 2
    assert "the arm says engine sglang, its log says vllm" in told[0]
    assert f"the arm says {word}=sglang, and its log says vllm: the word had no effect" in told[1]
    # `compare` refuses such logs; a report makes no ratio of them.
    arms = {name: {"trainer": "command", "engine": engine} for name, engine in (("a", "sglang"), ("b", "vllm"))}
    nothing = {"runs": [], "fingerprints": {}, "warmup_steps": 0}
    plan = planned({"experiment": "e", "baseline": "b", "arms": arms, **nothing})
    (answer,) = content_of(plan, [run, replace(run, run_id="b-s0", arm="b")], [], None).arm_verdicts
    assert answer.verdict == "x" and "a is an arm of sglang, its log says vllm" in answer.sentence


def test_event_files_are_read_where_the_script_writes_them(bench):
    one = bench('#!/bin/bash\nmkdir -p runs/now\ncp "$BENCH"/events.* runs/now/\n', read=["runs"])
    write_events(one.folder, range(1, 31), {"timing_s/gen": 8.3, "timing_s/old_log_prob": 1.0, "timing_s/step": 9.4})
    assert one.launch().returncode == 0, one.state()
    assert one.done()["steps"] == 30
    assert collect(RunPaths(one.run), one.run / "steps.parquet")
    assert one.read("imported.json")["read_as"]["trainer"] == "verl"


def test_an_image_is_started_by_srun(bench, monkeypatch):
    one = bench(image="registry/verl:1")
    (attempt := one.run / "attempts" / "1").mkdir(parents=True)
    keep(one.spec, one.run)
    with pytest.raises(UserError, match="use a Slurm profile"):
        prepared(one.spec, attempt)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    command, cwd, _ = prepared(one.spec, attempt)
    assert command[:4] == ["srun", "--overlap", "--nodes=1", "--ntasks=1"]
    mounts = f"--container-mounts={cwd}:{cwd},{attempt}:{attempt}"
    assert command[4:] == [
        *("--container-image=registry/verl:1", mounts, f"--container-workdir={cwd}", "bash"),
        str(attempt / "run.sh"),
    ]


def test_check_and_status_understand_such_arms_and_status_needs_neither_a_name_nor_the_script(
    bench, monkeypatch, capsys
):
    one = bench()
    monkeypatch.chdir(one.folder)
    Path("other.yaml").write_text("jobs: 4\n")
    arm = {"trainer": "command", "engine": "vllm", "options": {"script": str(one.script)}}
    raw = {"experiment": "mine", "baseline": "a", "arms": {"a": arm, "b": arm | {"env": {"X": "1"}}}}
    Path("mine.yaml").write_text(yaml.safe_dump(raw))
    assert main(["check", "mine.yaml"]) == 0
    assert "a-s0" in (out := capsys.readouterr().out) and "impossible (" not in out
    assert main(["status"]) == 0 and "a-s0" in capsys.readouterr().out
    Path("results/mine").mkdir(parents=True)
    Path("results/mine/plan.json").write_text(json.dumps(plan_runs(parse_config(raw), stack_facts).as_json()))
    one.script.unlink()
    assert main(["status", "mine.yaml"]) == 0
    told = capsys.readouterr()
    assert "a-s0" in told.out and "warning: the runs are those of its last start, as mine.yaml cannot" in told.err
    Path("next.yaml").write_text(yaml.safe_dump(raw))
    assert main(["status"]) == 1
    assert "several experiments are here; give one of mine.yaml, next.yaml" in capsys.readouterr().err
