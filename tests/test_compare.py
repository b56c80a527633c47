"""`rolloutbench compare`: the verdict of two logs in one command, and the configuration that makes the same tables."""

import json
import random
import re
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml

from analysis.imports.one_run import runs_among
from trainers.logs.record import Imported, SourceRead, StepRecord
from workflow.cli import main

from .patience import run

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "tests" / "goldens" / "data" / "formats"
VLLM, SGLANG = LOGS / "verl-console-vllm-0.log", LOGS / "verl-console-sglang-0.log"
RELEASE = ("--release", "0.4.1")
PAIR = (f"vllm={VLLM}", f"sglang={SGLANG}", *RELEASE)


def program(folder, *command):
    words = [str(Path(sys.executable).with_name(command[0])), *command[1:]]
    return run(words, 600, cwd=folder)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A folder in which two seeds of two engines were compared, and what the command printed."""
    folder = tmp_path_factory.mktemp("compared")
    arms = [
        f"{name}=" + ",".join(f"logs/verl-console-{name}-{seed}.log" for seed in (0, 1)) for name in ("vllm", "sglang")
    ]
    shutil.copytree(LOGS, folder / "logs")
    done = program(folder, "rolloutbench", "compare", *arms, "--save", "mine.yaml")
    # No library's warning on the terminal, from the figures neither.
    assert (done.returncode, done.stderr) == (0, "")
    return folder, done.stdout


def test_it_says_what_it_read_then_the_verdict_then_where_the_report_is(compared):
    folder, printed = compared
    lines = printed.splitlines()
    assert lines[:2] == [
        "vllm: verl (read as 0.6), vllm; 2 runs, 12 steps",
        "sglang: verl (read as 0.6), sglang; 2 runs, 12 steps",
    ]
    assert (
        lines[2].startswith("sglang: 1.13x faster than vllm: 55.8 s against 62.8 s per step (95% CI 1.02 to")
        and lines[-1] == "report: comparison/report.html"
    )
    assert (folder / "comparison" / "report.html").is_file() and len(
        list((folder / "comparison" / "figures").iterdir())
    )


def test_the_page_says_what_the_arms_are_and_no_reason_of_the_answer_twice(rolloutbench, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT / "tests" / "answers" / "loops_on_unlike_gpus")
    assert rolloutbench("compare", "a=a0.log,a1.log", "b=b0.log,b1.log", "--report", str(tmp_path / "r")).code == 0
    page = (tmp_path / "r" / "report.html").read_text(encoding="utf-8")
    assert page.index("a: verl 0.9.1 fully_async, vllm; ") < page.index("<nav"), "on the first screen"
    assert "Only the whole step is known: generation never waits" in page and "All timers added up" not in page
    assert "gpu-counts-differ" not in page and "mode-by-timers" not in page and "other numbers of GPUs" in page


@pytest.mark.full("whole workflows")
def test_the_saved_configuration_gives_the_same_tables_bit_by_bit(compared):
    folder, _ = compared
    profile = ("--profile", str(ROOT / "profiles" / "local"), "--cores", "2")
    source = ("-s", str(ROOT / "workflow" / "Snakefile"), "--configfile", "mine.yaml")
    done = program(folder, "snakemake", *profile, *source)
    assert done.returncode == 0, done.stderr
    here, there = folder / "comparison", folder / "results" / "mine"
    names = sorted(
        file.relative_to(there) for file in (*there.glob("tables/[a-z]*"), *there.glob("runs/*/steps.parquet"))
    )
    assert len(names) > 25
    whole = [Path(name) for name in ("verdict.json", "report.json", "preflight.json", "plan.json", "report.md")]
    for name in (*names, *whole):
        assert (here / name).read_bytes() == (there / name).read_bytes(), name


def test_for_programs_the_verdict_is_alone_on_its_stream(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *PAIR, "--verdict-only", "--json"]) == 0
    streams = capsys.readouterr()
    (verdict,) = json.loads(streams.out)["arms"]
    assert (verdict["arm"], verdict["baseline"], verdict["verdict"]) == ("sglang", "vllm", "~")
    assert "vllm: verl 0.4.1" in streams.err and not list(tmp_path.iterdir())
    assert main(["compare", *PAIR, "--verdict-only", "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("**sglang vs vllm: not resolved, one run an arm: 1.10x, ")


def test_a_job_of_github_actions_gets_the_verdict_in_its_summary(capsys, tmp_path, monkeypatch):
    summary = tmp_path / "summary.md"
    summary.write_text("# Checks\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *PAIR, "--verdict-only", "--markdown"]) == 0
    assert summary.read_text(encoding="utf-8") == f"# Checks\n{capsys.readouterr().out}\n"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "nowhere" / "summary.md"))
    assert main(["compare", *PAIR, "--verdict-only"]) == 0
    streams = capsys.readouterr()
    assert "cannot add the verdict to the job summary: " in streams.err and "sglang vs vllm: " in streams.out


def test_what_a_source_says_need_not_be_given(capsys, tmp_path, monkeypatch):
    """A log with its command and release; a folder with one log; arms are named after their engines."""
    monkeypatch.chdir(tmp_path)
    for log in (VLLM, SGLANG):
        engine = log.stem.split("-")[2]
        Path(engine).mkdir()
        head = f"verl==0.4.1\n+ python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name={engine}\n"
        Path(engine, "train.log").write_text(head + log.read_text(encoding="utf-8"), encoding="utf-8")
    assert main(["compare", "vllm", "sglang/train.log", "--verdict-only"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "vllm: verl 0.4.1, vllm; 1 run, 6 steps",
        "sglang: verl 0.4.1, sglang; 1 run, 6 steps",
    ]
    assert main(["compare", "vllm", "sglang", "--release", "0.7.1", "--verdict-only"]) == 1
    assert "vllm/train.log says verl 0.4.1 (got --release 0.7.1); omit --release" in capsys.readouterr().err
    # It is the other log's.
    assert main(["compare", "vllm", f"sglang={SGLANG}", "--release", "0.5", "--verdict-only"]) == 0
    assert "sglang: verl 0.5, sglang; 1 run" in capsys.readouterr().out
    assert main(["compare", f"sglang={tmp_path / 'vllm'}", "sglang/train.log", "--verdict-only"]) == 1
    assert "vllm/train.log is a run of vllm, and its arm is named sglang; swap the logs" in capsys.readouterr().err


def test_two_logs_that_name_neither_engine_nor_release_are_answered_first(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def said(*given):
        assert main(["compare", *given, "--verdict-only", "--json"]) == 0
        streams = capsys.readouterr()
        return json.loads(streams.out)["arms"][0], streams.err

    told, beside = said(str(VLLM), str(SGLANG))
    assert (told["arm"], told["baseline"]) == ("verl-console-sglang-0", "verl-console-vllm-0"), "named by their files"
    assert "verl-console-vllm-0: verl (read as 0.6), engine not in its log; 1 run, 6 steps" in beside
    last = beside.splitlines()[-1]
    assert last.startswith("Not in these logs: engine, release. Its timers are read as those of verl 0.6. ")
    assert (
        "`--names ENGINE,ENGINE --release RELEASE` (with your engines, in the logs' order, and your release) would "
        "add: the engines' settings and floors, the release's defaults." in last
    )
    flagged, beside = said(str(VLLM), str(SGLANG), "--names", "vllm,sglang", "--release", "0.6")
    assert flagged["ratios"] == told["ratios"] and "Not in these logs" not in beside


def test_a_paste_of_one_step_is_answered_as_one(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed_before = "a line of its start\n" * 20_000
    for name, seconds in (("a", 878.89), ("b", 408.19)):
        step = f"step:3 - timing_s/gen:{seconds - 30:.3f} - timing_s/step:{seconds:.3f}\n"
        Path(f"{name}.log").write_text(printed_before + step)
    assert main(["compare", "a.log", "b.log", "--verdict-only"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "b vs a: not resolved, one step only: 2.15x, 408 s against 879 s per step." in said
    assert "1 run against 1, 1 step each." in said
    assert main(["compare", "a.log", "b.log", "--verdict-only", "--warmup", "3"]) == 0
    assert "No comparison: " in capsys.readouterr().out


def test_what_another_has_written_is_left_as_it_was(tmp_path, capsys):
    results, saved = tmp_path / "results" / "mine", tmp_path / "mine.yaml"
    results.mkdir(parents=True)
    (results / "plan.json").write_text("{}")
    saved.write_text("experiment: mine\n")
    new = tmp_path / "new"
    for report, save, said in (
        (results, new, "holds no report of this command"),
        (new, saved, "was not written by this command"),
    ):
        assert main(["compare", *PAIR, "--report", str(report), "--save", str(save)]) == 1
        assert said in capsys.readouterr().err and not new.exists()
    assert (results / "plan.json").read_text() == "{}" and saved.read_text() == "experiment: mine\n"
    assert [file.name for file in results.iterdir()] == ["plan.json"]


def test_an_undeclared_release_is_answered(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", str(VLLM), str(SGLANG), "--release", "9.9", "--step-seconds", "x", "--verdict-only"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the timers of verl 9.9 are not declared (declared: 0.3, " in said and "Its timers are read as those" in said
    assert "--step-seconds was not used: it is of a column of a table" in said


def verl_log(name, mean_s, seed, first=1, steps=12):
    """A console of verl with steps of so many seconds, 1% apart."""
    draw = random.Random(seed)
    seconds = [mean_s * draw.uniform(0.99, 1.01) for _ in range(steps)]
    lines = [f"step:{first + n} - timing_s/gen:{0.7 * s:.3f} - timing_s/step:{s:.3f}\n" for n, s in enumerate(seconds)]
    Path(name).write_text("verl==0.5\n" + "".join(lines), encoding="utf-8")


def verdict_of(capsys, *given):
    assert main(["compare", *given, "--verdict-only", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["arms"][0]


def test_the_answer_has_seconds_says_where_the_difference_lies_and_what_reading_met(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for n in (0, 1):
        verl_log(f"a{n}.log", 100, n, steps=18)
        verl_log(f"b{n}.log", 60, 10 + n, first=5)
    given = ("a=a0.log,a1.log", "b=b0.log,b1.log")
    found = verdict_of(capsys, *given)
    met = [one["text"] for one in found["caveats"] if "begins with step 5, and a with its first" in one["text"]]
    assert len(met) == 1 and "and 1 more like it" in met[0]
    assert re.fullmatch(r"b: 1\.6\dx faster than a: 60\.\d s against \S+ s per step \(95% CI .*\)\.", found["sentence"])
    assert found["difference"] == "Of the difference: generation 70%, no timer 30%."
    assert "12 of 60 steps left out (10 not in every run, 2 warm-up)" in found["basis"]
    assert main(["compare", *given, "--verdict-only"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    lines = (found["sentence"], found["difference"], found["basis"], met[0])
    assert [said.count(line) for line in lines] == [1, 1, 1, 1], said
    assert said.index(lines[0]) < said.index(lines[1]) < said.index(lines[2]) < said.index(lines[3])


def test_runs_at_the_same_time_are_two():
    def log(first, start_s):
        record = partial(StepRecord, phases={}, scalars={}, samples={}, resumed=None, file=Path("x"), line=1)
        records = {first + n: record(step=first + n, time=start_s + 10.0 * n) for n in range(20)}
        return Imported(SourceRead(records), "wandb")

    assert runs_among({"x": log(1, 0.0), "y": log(21, 300.0)}) == ([["x", "y"]], [])
    (runs, (said,)) = runs_among({"x": log(1, 0.0), "y": log(21, 100.0)})
    assert runs == [["x"]] and said.endswith("it does not go on with x: it began before that had ended")


# docs/architecture.md follows a value through them.
MOST_FUNCTIONS, MOST_OPENS = 450, 2


def test_a_verdict_calls_few_functions_and_opens_each_log_twice_at_most():
    done = program(ROOT, "python", "-m", "bench.functions")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "two vs one: " in found["printed"]
    assert found["total"] <= MOST_FUNCTIONS, found["functions"]
    assert {"a.log", "b.log"} <= found["opened"].keys() and max(found["opened"].values()) <= MOST_OPENS, found["opened"]
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`(?:\w+/)*(\w+\.py)`", page.partition("## One value")[2].partition("\n## ")[0])
    assert len(named) > 9 and {*named} <= {Path(file).name for file in found["functions"]}


REQUEUED = ROOT / "tests" / "answers" / "three_runs_in_two_files_each"


def answer_of(capsys, *words):
    code = main(["compare", *words, "--verdict-only"])
    found = capsys.readouterr()
    return code, " ".join((found.out + found.err).split())


def test_the_lives_of_two_runs_are_told_apart_by_their_folders(capsys, tmp_path, monkeypatch):
    """The remedy that the command names works, and gives the same answer as the list of all logs."""
    monkeypatch.chdir(shutil.copytree(REQUEUED, tmp_path / "logs"))
    for arm, seed, life in ((arm, seed, life) for arm in "ab" for seed in (0, 1) for life in (1, 2)):
        shutil.copy(f"{arm}{seed}/{life}.log", f"{arm}{seed}-{life}.log")
    flat = [f"{arm}=" + ",".join(f"{arm}{seed}-{life}.log" for seed in (0, 1) for life in (1, 2)) for arm in "ab"]
    code, mixed = answer_of(capsys, *flat)
    assert code == 0 and "it may go on with b0-1.log or b1-1.log: give a folder with the logs of each run" in mixed
    code, said = answer_of(capsys, "a=a0,a1", "b=b0,b1")
    listed = [f"{arm}=" + ",".join(f"{arm}{seed}/{life}.log" for seed in (0, 1) for life in (1, 2)) for arm in "ab"]
    assert (code, said) == answer_of(capsys, *listed)
    assert code == 0 and "2 runs, 48 steps" in said and "left out, because" not in said
    answer_of(capsys, *listed, "--save", "mine.yaml")
    parts = [{"source": [f"a{seed}/{life}.log" for life in (1, 2)]} for seed in (0, 1)]
    assert yaml.safe_load(Path("mine.yaml").read_text())["arms"]["a"]["import"]["runs"] == parts


def test_a_folder_with_the_logs_of_two_runs_is_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(shutil.copytree(REQUEUED, tmp_path / "logs"))
    shutil.copy("b1/1.log", "b0/3.log")
    code, said = answer_of(capsys, "a=a0", "b=b0")
    assert code == 1 and "b0 holds 3 logs (1.log, 2.log, 3.log), which are not one run; give one, or several" in said
