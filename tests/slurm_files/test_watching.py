"""What a launcher makes of squeue's answers about its job; Slurm's commands are scripts here."""

import time

import pytest

from workflow.head import watch
from workflow.head.watch import SlurmWatch
from workflow.runs.ends import explain
from workflow.runs.orders import Presence, order_of
from workflow.slurm import shared_queue

from ..runs.make_runs import MadeRun
from .test_queue import fake, line, sacct, squeue  # noqa: F401

pytestmark = pytest.mark.promise("invariant-5")


@pytest.fixture
def submitted(tmp_path, monkeypatch):
    """A run whose job was accepted just now, and who watches it with new answers at each look."""
    monkeypatch.setattr(watch, "MAX_AGE_S", 0.0)
    monkeypatch.setattr(shared_queue, "MAX_AGE_S", 0.0)
    made = MadeRun(tmp_path / "results" / "mine", "vllm-s0").job()
    watched = SlurmWatch(made.paths)
    watched.submitted()
    return made, watched


def test_a_job_that_was_accepted_and_never_listed_is_waited_for_and_then_lost(fake, submitted, monkeypatch):  # noqa: F811
    """A slurmctld that was killed forgets what it has not saved; a squeue may leave a job out for a while."""
    made, watched = submitted
    order = order_of(made.paths)
    fake("squeue", squeue())
    assert [watched.state(order).job for _ in range(2)] == [Presence.UNKNOWN] * 2
    monkeypatch.setattr(watch, "_UNSEEN_S", 0.0)
    assert watched.state(order).job is Presence.NONE
    fake("sacct", sacct())
    assert explain(watched.last_words(order), {}) == "is unknown to Slurm"


def test_one_answer_without_a_job_that_was_listed_is_enough(fake, submitted):  # noqa: F811
    made, watched = submitted
    order = order_of(made.paths)
    fake("squeue", squeue(line("7", "PENDING", name=made.name)))
    assert watched.state(order).job is Presence.WAITING
    fake("squeue", squeue())
    assert watched.state(order).job is Presence.NONE
    # Whom the new entry waits behind is listed again: no third one follows.
    watched.submitted()
    assert watched.state(order).job is Presence.UNKNOWN


def test_a_cancellation_is_said_with_its_user_and_counts_for_its_own_job(fake, submitted, monkeypatch):  # noqa: F811
    made, watched = submitted
    order = order_of(made.paths)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    fake("squeue", squeue(line("7", "CANCELLED", name=made.name)))
    fake("sacct", sacct(f"7|CANCELLED by 0|0:0|gpu1|{made.name}"))
    assert watched.state(order).job is Presence.NONE
    assert explain(watched.last_words(order), {}).startswith("was cancelled by root")
    made.job(job_id="8")
    fake("sacct", sacct())
    assert explain(watched.last_words(order_of(made.paths)), {}) == "is unknown to Slurm"
