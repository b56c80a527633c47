"""Reward models in a separate process: equal scores, and errors that name the process's failure."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from workflow.cluster.place import Place
from workflow.cluster.rendezvous import NoServerError, TaskSetup
from workflow.cluster.server import ServerHead, ServerSetup

from .. import patience
from ..attempts import ROOT, TRANSFORMERS, job_environment, read_lines, reward_model, warm, write_attempt
from ..trainers.trl.test_trl_grpo import PREPARE
from .scorer_client import ROUNDS, answers

pytestmark = pytest.mark.full("reward models in processes of their own")

Stack = Callable[[str], Path]


@contextmanager
def beside(python: Path, attempt: Path) -> Iterator[tuple[ServerHead, dict[str, str]]]:
    """A scorer as the job starts it, and the environment of the trainer beside it, once it answers."""
    setup = TaskSetup(
        place=Place(0, ("here",), 2, 0),
        folder=attempt.parent / "life",
        python=python,
        environment=job_environment(PYTHONPATH=str(ROOT)),
        cwd=ROOT,
        log=attempt.parent / "log",
    )
    scorer = json.loads((attempt.parents[2] / "spec.json").read_text())["scorer"]
    with ServerHead(setup, 1, ServerSetup(scorer, setup.environment, attempt.parent / "scorer.log", "scorer")) as head:
        head.start(attempt.parent)
        head.wait_for_nodes()
        yield head, {**setup.environment, **head.environment()}


def scorer_of(attempt: Path) -> psutil.Process:
    """The scorer of an attempt, which this process has started."""
    (found,) = (one for one in psutil.Process().children() if {"node.scorer", str(attempt)} <= set(one.cmdline()))
    return found


def ordered(folder: Path, inputs: Path, **trainer_args: Any) -> Path:
    """An attempt whose reward model is scored twice: in the trainer's process, and in its own."""
    rewards = [reward_model(inputs, max_length=24), reward_model(inputs, max_length=24, name="asked", device="own")]
    weights = [one["weight"] for one in rewards]
    attempt = write_attempt(folder / "run", inputs, rewards=rewards, reward_weights=weights, **trainer_args)
    spec = json.loads((folder / "run" / "spec.json").read_text())
    spec["scorer"] = {"module": "node.scorer", "gpus": 0, "patience_s": 3600}
    (folder / "run" / "spec.json").write_text(json.dumps(spec))
    return attempt


def test_scores_equal_the_trainers_and_a_silent_or_dead_scorer_is_named(
    stack_python: Stack, made_inputs: Path, tmp_path: Path
) -> None:
    python, attempt, out = stack_python(TRANSFORMERS), ordered(tmp_path, made_inputs), tmp_path / "results.json"
    with beside(python, attempt) as (head, environment):
        scorer = scorer_of(attempt)
        done = warm(python).run("-m", "tests.node.ask_scorer", attempt, scorer.pid, out, env=environment)
        assert done.returncode == 0, done.stderr + (attempt.parent / "scorer.log").read_text()
        died, code = head.culprit(2)
        assert died.startswith("the scorer on rank 0 (here) was killed by SIGKILL") and code == -signal.SIGKILL
    results = json.loads(out.read_text())
    (here, counted), (there, counted_there) = results["here"], results["there"]
    assert there == pytest.approx(here, abs=1e-6) and max(here) - min(here) > 1e-2
    assert counted == counted_there and counted["truncated"] > 0
    assert "the secret is wrong" in results["stranger"]
    assert "did not answer within 0.5 s" in results["silent"] and "does not answer (" in results["dead"]


def test_parallel_clients_get_their_own_scores_when_another_client_dies(
    stack_python: Stack, made_inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = ordered(tmp_path, made_inputs)
    with beside(stack_python(TRANSFORMERS), attempt) as (head, environment):
        for name, value in head.environment().items():
            monkeypatch.setenv(name, value)
        alone = {who: answers(attempt, who) for who in ("one", "two")}
        scorer = scorer_of(attempt)
        scorer.suspend()  # all questions wait together, also those of the dead
        started = {}
        for who, *part in (("one",), ("three", "1"), ("four", "0.5"), ("two",)):
            command = [sys.executable, "-m", "tests.node.scorer_client", str(attempt), who, str(tmp_path / who), *part]
            started[who] = psutil.Popen(command, cwd=ROOT, env=environment)
        patience.until(lambda: all(started[who].poll() for who in ("three", "four")), os.getpid())
        patience.until(lambda: all(started[who].net_connections() for who in alone), os.getpid())
        scorer.resume()
        patience.until(lambda: all(one.poll() is not None for one in started.values()), os.getpid())
        assert [started[who].poll() for who in ("one", "two", "three", "four")] == [0, 0] + [-signal.SIGKILL] * 2
        assert head.poll() is None and answers(attempt, "one") == alone["one"]
    assert len(alone["one"]) == ROUNDS and alone["one"][0] != alone["two"][0]
    for who, scores in alone.items():
        assert json.loads((tmp_path / who).read_text()) == scores
    assert len({value for values, *_ in (*alone["one"], *alone["two"]) for value in values}) > ROUNDS
    assert any(truncated for *_, truncated in alone["two"]) and not alone["two"][0][2]


def test_a_scorer_that_dies_in_a_step_ends_the_training_and_leaves_no_process(
    stack_python: Stack, made_inputs: Path, tmp_path: Path
) -> None:
    python, attempt = stack_python(TRANSFORMERS), ordered(tmp_path, made_inputs, max_steps=1000, save_strategy="no")
    metrics = attempt.parent / "metrics.jsonl"
    with beside(python, attempt) as (head, environment):
        scorer = scorer_of(attempt)
        _, *command = head.command([str(python), "-m", "trainers.trl.driver.train", str(attempt)])
        trainer = warm(python).start(*command, env=environment, joined=True)
        patience.until(lambda: len(read_lines(metrics)) >= 2 or trainer.poll() is not None, trainer.pid)
        scorer.kill()
        patience.until(lambda: trainer.poll() is not None, trainer.pid)
        log, _ = trainer.communicate()
        assert trainer.poll() == 2 and "error: the scorer at 127.0.0.1:" in log, log
        assert (head.poll() or "").startswith("the scorer on rank 0 (here) was killed by SIGKILL")
    for line in read_lines(metrics)[:2]:
        scalars, phases = line["scalars"], line["phases"]
        for what in ("mean", "std", "truncated", "failed"):
            here, there = (scalars[f"train/rewards/{name}/{what}"] for name in ("liked", "asked"))
            assert there == pytest.approx(here, abs=1e-6)
        assert all(phases[f"{PREPARE}/rewards/{name}"] > 0 for name in ("liked", "asked"))
    assert not scorer.is_running()


def test_a_model_that_cannot_load_is_named_before_the_trainer_starts(
    stack_python: Stack, made_inputs: Path, tmp_path: Path
) -> None:
    attempt = ordered(tmp_path, made_inputs)
    spec = json.loads((tmp_path / "run" / "spec.json").read_text())
    spec["scorer"]["gpus"] = 1
    (tmp_path / "run" / "spec.json").write_text(json.dumps(spec))
    words = r"the scorer on .*need GPUs of their own \(1\), and torch sees 0"
    with pytest.raises(NoServerError, match=words), beside(stack_python(TRANSFORMERS), attempt):
        pass
