"""The toy: a trainer of the tests, with all that is asked of one in its folder."""

from common.errors import UserError
from tests.trainers.toy import console
from trainers.cases import Rule
from trainers.protocol import Driver, LogFormat, Logs, Trainer
from trainers.timers.tree import Phase, TimerTree


def _trainer_args(arm, workload, seed, stack):
    if workload.gpus_per_node:
        raise UserError(f"trainer toy trains on a CPU (got gpus_per_node {workload.gpus_per_node})")
    prompts = workload.batch_size // workload.num_generations
    settings = {"steps": workload.steps, "group": workload.num_generations, "prompts": prompts, "seed": seed}
    return {**settings, "letters": workload.max_response_length, **arm.options}


_TREE = TimerTree(
    trainer="toy",
    series="2",
    engines=("abacus",),
    source="tests/trainers/toy/driver.py",
    phases=(
        Phase("step", "Step", "One update of the table.", "other", ("step",)),
        Phase("step/draw", "Draw", "Abacus draws the completions.", "generation", ("draw",)),
        Phase("step/learn", "Learn", "Rewards and the update.", "loss+backward", ("learn",)),
    ),
)

TOY = Trainer(
    name="toy",
    engines=("abacus",),
    label="NumPy",
    driver=Driver("tests.trainers.toy.driver", _trainer_args),
    keys={"steps": ("steps",), "prompts": ("prompts",), "num_generations": ("group",)},
    logs=Logs(
        declared=lambda: (_TREE,),
        formats=(LogFormat(console.FORMAT, "the toy's console", console.read, is_step=console.is_step),),
        quantities={"reward": ("toy/score",), "mean_response_length": ("toy/characters",)},
    ),
    checks=(
        Rule(
            "toy-rate",
            "odd",
            lambda case: (rate := case.settings.number("rate")) is not None and rate > 1 and rate,
            "a rate of {got} with {engine}",
            "the table jumps from one completion to the next",
            "tests/trainers/toy/driver.py",
            "options: rate: at most 1",
        ),
    ),
)
