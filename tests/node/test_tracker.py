"""wandb that fails again and again: it is restarted once, then dropped, and training continues."""

import itertools
import sys
from types import ModuleType, SimpleNamespace

import pytest

from node.tracker import Tracker
from trainers.verl.driver.step_hooks import GuardedWandb

RUN = {"project": "p", "name": "n", "config": {}}


class FailingWandb(ModuleType):
    """Counts the starts; `fails` are the calls of `log` that raise, from 0."""

    def __init__(self, *fails):
        super().__init__("wandb")
        self.starts, self.finished, self.logged = [], [], []
        calls, logged = itertools.count(), self.logged

        class Run(SimpleNamespace):
            def log(self, data, step=0):
                if next(calls) in fails:
                    raise BrokenPipeError("its process ended")
                logged.append(step)

        self.Run, self.run = Run, Run(**RUN)

    def log(self, data, step):
        self.run.log(data, step=step)

    def init(self, **given):
        self.starts.append(given)

    def teardown(self):
        raise RuntimeError("its process has died")

    def finish(self, exit_code=0):
        self.finished.append(exit_code)


def by_verl(wandb, monkeypatch):
    guarded = GuardedWandb(wandb)
    return guarded.log, guarded.finish


def by_transformers(wandb, monkeypatch):
    class WandbCallback:
        _initialized = True

        def setup(self, *given):
            wandb.init(**RUN)

        on_train_begin = on_log = on_save = on_train_end = setup

    integrations = ModuleType("transformers.integrations")
    integrations.WandbCallback = WandbCallback
    for name, module in (("wandb", wandb), ("transformers.integrations", integrations)):
        monkeypatch.setitem(sys.modules, name, module)
    handler = SimpleNamespace(callbacks=[WandbCallback()])
    tracker = Tracker(SimpleNamespace(callback_handler=handler, args=None, state=None, model=None))
    return wandb.log, tracker.finish


@pytest.mark.parametrize("guarded", [by_verl, by_transformers])
@pytest.mark.parametrize(
    ("fails", "starts", "logged", "lost"),
    [
        ((), 0, [1, 2, 3, 4, 5], False),
        # Step 2 fails and is logged after the restart.
        ((1,), 1, [1, 2, 3, 4, 5], False),
        # Step 2 fails again after the restart.
        ((1, 2), 1, [1], True),
        # Steps 2 and 4 fail: a second failure is no second restart.
        ((1, 4), 1, [1, 2, 3], True),
        (tuple(range(0, 20, 2)), 1, [1], True),
    ],
)
def test_wandb_is_restarted_once_and_then_dropped(guarded, fails, starts, logged, lost, monkeypatch, capsys):
    wandb = FailingWandb(*fails)
    log, finish = guarded(wandb, monkeypatch)
    for step in range(1, 6):
        log({"loss": 1.0}, step=step)
    finish()
    assert (wandb.starts, wandb.logged) == ([RUN] * starts, logged)
    assert wandb.finished == ([] if lost else [0])
    told = capsys.readouterr().out
    assert told.count("restarting it once") == starts
    assert told.count("wandb is lost (BrokenPipeError: its process ended); metrics.jsonl has every step") == lost
