"""Logs as people have them, given to `compare` without a flag: each has its right answer, or the flag that decides."""

import json
import shutil
from pathlib import Path

import pytest

from workflow.cli import main

LOGS = Path(__file__).parent / "goldens" / "data" / "first-minute"


@pytest.fixture
def compared(tmp_path, monkeypatch, capsys):
    """The verdict of two logs, and what is said beside it."""
    monkeypatch.chdir(shutil.copytree(LOGS, tmp_path / "logs"))

    def compare(*given):
        code = main(["compare", *given, "--verdict-only", "--json"])
        streams = capsys.readouterr()
        assert len(streams.err.splitlines()) <= 12, streams.err
        return (json.loads(streams.out)["arms"][0] if code == 0 else {}), " ".join(streams.err.split())

    return compare


@pytest.mark.parametrize(
    ("baseline", "arm", "ratio", "said"),
    [
        ("trl-a.log", "trl-b.log", 1.22, "trl-a: trl 1.16 native, engine not in its log; 1 run, 30 steps"),
        ("verl-a.log", "verl-b.log", 1.21, "verl-a: verl 0.8, engine not in its log; 1 run, 24 steps"),
        ("own-a.jsonl", "own-b.jsonl", 1.19, "time/total_s is the step's seconds, time/rollout_s, time/train_s"),
        ("own-a.csv", "own-b.csv", 1.19, "own-a: a table, engine not in its log; 1 run, 40 steps"),
        ("sync-same-work.log", "fully-async.log", 1.67, "fully_async, engine not in its log; 1 run, 47 steps"),
        ("swift-thinned-a.log", "swift-thinned-b.log", 2.01, "native, engine not in its log; 1 run, 100 steps"),
        (
            "sync-same-work.log",
            "config-with-stray-lines.log",
            None,
            "config-with-stray-lines: verl 0.9.1 separate_async, vllm",
        ),
    ],
)
def test_two_logs_have_their_right_answer(compared, baseline, arm, ratio, said):
    verdict, beside = compared(baseline, arm)
    assert said in beside and "Not in these logs: " in beside
    value = verdict["ratios"][0]["value"][0]
    assert ratio is None or value == pytest.approx(ratio, abs=0.02), value


def test_lengths_without_the_number_of_responses_are_no_equal_work(compared):
    verdict, _ = compared("verl-a.log", "verl-b.log")
    assert verdict["ratios"][0]["unit"] == "per step"
    unknown = "the number of responses of the baseline and the arm is not known"
    assert any(unknown in caveat["text"] for caveat in verdict["caveats"])


def bars(seconds, shown):
    """A console of supervised fine-tuning, with or without its progress bars."""
    text = ""
    for step in range(10, 310, 10):
        passed = int(step * seconds)
        text += f"{{'loss': 1.5, 'learning_rate': 1e-05, 'epoch': {step / 1000}}}\n"
        text += f"\r {step // 10}%|█▌   | {step}/1000 [{passed // 60}:{passed % 60:02}<05:02, 2.0s/it]" if shown else ""
    return text


def test_a_log_of_supervised_fine_tuning_is_named_and_compared_by_its_bars(compared):
    for name, seconds in (("slow", 2.5), ("fast", 2.0)):
        Path(f"{name}.log").write_text(bars(seconds, shown=True))
        Path(f"{name}-bare.log").write_text(bars(seconds, shown=False))
    verdict, beside = compared("slow.log", "fast.log")
    assert verdict["ratios"][0]["value"][0] == pytest.approx(1.25, abs=0.02)
    assert "a log of supervised fine-tuning: it has losses, and no rewards or completions" in beside
    doubts = " ".join(one["text"] for one in verdict["caveats"])
    assert "a step's seconds are the progress bar's: whole seconds, up to 0.1 s off each step" in doubts
    _, said = compared("slow-bare.log", "fast-bare.log")
    assert "slow-bare.log: a log of supervised fine-tuning: it has losses" in said
    assert "None of its 30 steps has its seconds: import a log with the progress bar" in said
