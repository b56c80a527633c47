"""The phase clock, and the names of TRL's timers."""

import threading
from types import SimpleNamespace

import pytest

from node.hardware import OtherLoad
from node.phase_clock import PhaseClock, StepClock, clock_after
from trainers.swift.driver.timers import SwiftTimers
from trainers.trl.driver.timers import LOG_PROB, TrlTimers, log_prob_phase, phase_name
from trainers.trl.trainer import TRL


class Ticks:
    """A clock that a test winds: each reading is the next whole second."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        self.seconds += 1
        return self.seconds


def test_a_phase_on_a_gpu_ends_with_its_kernels():
    """Python starts kernels and goes on: without waiting, their seconds would be the next phase's."""
    now, asked = 0.0, 0.0

    def wait():
        nonlocal now, asked
        now, asked = now + asked, 0.0

    clock = PhaseClock(clock_after(wait, lambda: now))
    with clock.phase("step"):
        with clock.phase("compute_loss"):
            asked += 3.0
        with clock.phase("backward"):
            asked += 5.0
    assert clock.take()[0] == {"step": 8.0, "step/compute_loss": 3.0, "step/backward": 5.0}


class Sleeper:
    """A colocated vLLM that sleeps, and the calls that TRL 1.16's VLLMGeneration makes of it."""

    mode = "colocate"

    def __init__(self):
        self.llm = self
        self.calls = []

    def sleep(self, level):
        self.calls.append(f"sleep {level}")

    def wake_up(self, tags):
        self.calls.append(f"wake {tags[0]}")

    def sync_weights(self):
        self.llm.wake_up(tags=["weights"])

    def generate(self):
        self.sync_weights()
        self.llm.wake_up(tags=["kv_cache"])
        self.llm.sleep(level=2)


def a_trainer(processes=1, mode="colocate", **more):
    accelerator = SimpleNamespace(backward=len, num_processes=processes)
    args = SimpleNamespace(use_vllm=True, vllm_mode=mode, async_generate=False)
    trainer = SimpleNamespace(accelerator=accelerator, args=args, model=object(), training_step=len, **more)
    setattr(trainer, LOG_PROB, len)
    return trainer


@pytest.mark.parametrize(
    ("kind", "method"), [(TrlTimers, "_generate_single_turn"), (SwiftTimers, "_generate_completions")]
)
@pytest.mark.parametrize(("processes", "mode"), [(2, "colocate"), (1, "colocate"), (2, "server")])
def test_a_ready_process_waits_for_the_slowest_engine_first(kind, method, processes, mode, monkeypatch):
    """The next phase that gathers would have the seconds; with a server all wait in `generate`."""
    clock = PhaseClock(Ticks())
    done = []
    engine = SimpleNamespace(engine=None)
    more = {method: lambda made: done.append(clock.path) or made, "reward_funcs": [], "log": len, "engine": engine}
    more |= dict.fromkeys(("offload_model", "load_model", "offload_optimizer", "load_optimizer"), len)
    more |= {"_move_model_to_vllm": len, "_server_rollout": len}
    trainer = a_trainer(processes, mode, **more)
    trainer.accelerator.wait_for_everyone = lambda: done.append(clock.path)
    monkeypatch.setattr(kind, "_hook_profiling_contexts", lambda self: None)
    kind(clock).install(trainer)
    with clock.phase("prepare_inputs"):
        assert getattr(trainer, method)("made") == "made"
    waits = processes == 2 and mode == "colocate"
    assert done == ["prepare_inputs", *["prepare_inputs/wait"] * waits]


def test_waking_for_new_weights_is_weight_sync_in_ms_swift():
    clock, engine = PhaseClock(Ticks()), Sleeper()
    SwiftTimers(clock)._time_waking(engine)
    engine.wake_up(tags=["weights"])
    engine.wake_up(tags=["kv_cache"])
    assert clock.take()[1] == {"sync_weights": 1.0, "sleep": 1.0}


def test_sleep_has_its_own_phase_and_waking_for_weights_is_weight_sync(monkeypatch):
    clock, engine = PhaseClock(Ticks()), Sleeper()
    timers = TrlTimers(clock)
    monkeypatch.setattr(timers, "_hook_profiling_contexts", lambda: None)  # it wants TRL
    timers.install(a_trainer(vllm_generation=engine))
    with clock.phase("step"), clock.phase("training_step"), clock.phase("prepare_inputs"):
        engine.generate()
    assert engine.calls == ["wake weights", "wake kv_cache", "sleep 2"]
    phases = clock.take()[0]
    inputs = "step/training_step/prepare_inputs"
    assert (phases[f"{inputs}/sync_weights"], phases[f"{inputs}/sleep"]) == (1.0, 2.0)
    assert set(phases) <= {phase.path for phase in TRL.logs.trees[0].phases}


def test_a_step_has_the_time_before_it_and_the_phases_outside(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu0 0 0 0 0 0 0 0 0 0 0\n")
    clock = StepClock(OtherLoad([0], stat), Ticks())
    steps = []
    for _ in range(2):
        clock.begin_step()
        with clock.phase("generate"):
            pass
        steps.append(clock.end_step())
        with clock.phase("save"):
            pass
    phases = {"step": 3.0, "step/generate": 1.0}
    assert steps[0] == (phases, {"other_cpu_s": 0.0})
    assert steps[1] == (phases, {"between_steps_s": 3.0, "other_cpu_s": 0.0, "outside_step_s/save": 1.0})
    stat.unlink()
    clock.begin_step()
    assert "other_cpu_s" not in clock.end_step()[1]


def test_a_phase_of_another_thread_is_inside_the_open_phase():
    clock = PhaseClock(Ticks())

    def work():
        with clock.phase("reward"):
            assert clock.path == "step/rewards/reward"

    with clock.phase("step"), clock.phase("rewards"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert clock.take()[0]["step/rewards/reward"] == 1.0


def test_an_unknown_timer_of_trl_keeps_its_name():
    assert phase_name("GRPOTrainer.new thing/here", "the pass") == "new_thing_here"


@pytest.mark.parametrize(
    ("adapters_are_off", "active", "phase"),
    [
        (None, "", "old_log_prob"),
        (False, "default", "old_log_prob"),
        (True, "default", "ref_log_prob"),
        (False, "ref", "ref_log_prob"),
    ],
)
def test_without_a_reference_model_the_pass_is_the_old_policys_unless_an_adapter_is_off(
    adapters_are_off, active, phase
):
    """`disable_adapters` of a transformers' model is a method, whether it has adapters or not."""
    layer = SimpleNamespace(disable_adapters=adapters_are_off, active_adapters=[active])
    layers = [] if adapters_are_off is None else [layer]
    model = SimpleNamespace(disable_adapters=len, active_adapters=list)
    model.modules = lambda: [model, *layers]
    path = "step/training_step/prepare_inputs"
    assert log_prob_phase(SimpleNamespace(ref_model=None), model, path) == phase
