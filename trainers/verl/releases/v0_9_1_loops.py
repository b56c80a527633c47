"""verl 0.9.1's loops: the GPUs that they take beside the trainer's, and their timers."""

from __future__ import annotations

from trainers.cases import Case, Rule
from trainers.timers.tree import Phase, TimerTree
from trainers.verl import timers
from trainers.verl.driver.overrides import ROLLOUT

MODE = "trainer.v1.trainer_mode"
_REWARD, _TEACHERS = "reward.reward_model", "distillation"


def _pools(case: Case) -> dict[str, int]:
    """The GPUs of each pool beside the trainer's."""
    settings = case.settings
    engines = settings.get(MODE) == "separate_async" and settings.get("trainer.use_v1", True)
    sections = {
        ROLLOUT: engines,
        _REWARD: settings.true(f"{_REWARD}.enable_resource_pool"),
        _TEACHERS: settings.true(f"{_TEACHERS}.enabled"),
    }
    return {
        section: settings.int(f"{section}.nnodes") * settings.int(f"{section}.n_gpus_per_node")
        for section, has in sections.items()
        if has
    }


def _beside(case: Case) -> str | None:
    pools = ", ".join(f"{gpus} by {section}" for section, gpus in _pools(case).items())
    return f"{pools} beside the trainer's {case.gpus}" if pools else None


BESIDE = Rule(
    "setting-gpus-beside",
    "impossible",
    _beside,
    "a job has only the trainer's GPUs (got {got})",
    "verl {version} ends with an error, or waits for GPUs that the job does not have",
    "verl 0.9.1, trainer/ppo/v1/trainer_separate_async.py:64, trainer_base.py:823 and :838",
    f"{MODE}: sync or colocate_async, without {_REWARD}.enable_resource_pool and {_TEACHERS}; or train it elsewhere "
    "and import the run",
    on_imported=False,
)

_V1_STEP = Phase(
    "step",
    "Step",
    "Wall clock of one training step on the driver; its residual contains the dispatch of prompts and the balancing of "
    "the batch.",
    "other",
    ("step",),
)
_V1_GEN = (
    "The driver waits until the replay buffer has the batch, which it checks every 2 s, then puts the engines to "
    "sleep. Rewards by rule are computed inside."
)


def _v1_loop(files: str, more: str = "", mode: str = "") -> TimerTree:
    reward = timers.reward("Only with a reward model on the training GPUs.")
    phases = (_V1_STEP, timers.gen(_V1_GEN + more), reward, *timers.TRAINING, *timers.AFTER_WEIGHTS)
    return timers.tree_of("0.9.1", f"verl 0.9.1 trainer/ppo/v1/trainer_base.py {files}", *phases, mode=mode)


TREES = (
    _v1_loop("(fit, _step_once) and trainer_sync.py"),
    _v1_loop(
        "and trainer_colocate_async.py",
        " Responses may have begun in an earlier step: its seconds and its tokens are not of the same work.",
        mode="colocate_async",
    ),
    timers.tree_of(
        "0.9.1",
        "verl 0.9.1 trainer/ppo/ray_trainer.py (fit, use_v1=False), experimental/agent_loop/agent_loop.py",
        timers.STEP,
        timers.gen(
            "Driver wall clock; its own time is what the slowest sample does not explain: waiting for an engine, "
            "putting it to sleep, moving the batch."
        ),
        *(*timers.SLOWEST, timers.reward("Collects the scores; a reward model scores here."), *timers.TRAINING),
        *(*timers.AFTER_WEIGHTS[:2], timers.DUMP, *timers.AFTER_WEIGHTS[2:]),
        mode="legacy",
        not_summed=(*timers.AGENT_LOOP, *timers.PROFILES),
    ),
    timers.overlapping("0.9.1", "separate_async", "trainer/ppo/v1/trainer_separate_async.py"),
    timers.overlapping("0.9.1", "one_step_off", "experimental/one_step_off_policy/ray_trainer.py"),
    timers.overlapping("0.9.1", "fully_async", "experimental/fully_async_policy/fully_async_trainer.py"),
)
