"""Describes the trainer `command`: a user's own script, of which only the varied words are replaced in a copy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationError

from common.errors import UserError
from common.published import check_option_name
from engines import UNKNOWN, engines
from trainers import Spread
from trainers.protocol import Driver, Trainer
from trainers.section import Count, PositiveInt, Section
from trainers.workload import TrainedArm


class CommandOptions(Section):
    """The `options` of an arm of trainer `command`; `rolloutbench ab` writes them (docs/howto/script.md)."""

    script: str = Field(min_length=1)
    """The bash script; a relative path is relative to the folder where snakemake is started."""
    arguments: tuple[str, ...] = ()
    """Arguments of the script."""
    words: tuple[str, ...] = ()
    """Words of the training command, replaced in a copy of the script or appended: `key=value`, `--flag=value`,
    `NAME=value`. `{seed}`, `{arm}` and `{run}` in a value are the run's, `{value}` at its beginning is the script's
    own, and `$NAME` is a variable where the script runs."""
    python: str = ""
    """An interpreter, or the folder of a venv or a conda environment: its programs come first on PATH."""
    packages: str = ""
    """Identifies the packages in that environment when the configuration was written."""
    image: str = ""
    """A container image for `srun --container-image` (pyxis), on Slurm only."""
    cwd: str = ""
    """Where the script starts; default: its own folder."""
    read: tuple[str, ...] = ()
    """Files or folders with the log, as globs relative to `cwd`: a log, wandb's folder, tensorboard's event files.
    Default: what the script prints."""
    resume: Literal["restart", "script"] = "restart"
    """After a time limit or a preemption: `restart` runs it from the start, and only the last life counts; with
    `script` it continues from its own checkpoint, and all lives count."""
    nodes: PositiveInt = 1
    """Nodes of a run; the script runs on the first and starts the others itself (`srun`, `ray`)."""
    gpus_per_node: Count = 0
    """GPUs of each node to request from Slurm; on one machine the script uses what it finds."""
    tasks_per_node: PositiveInt = 1
    """Tasks of each node for the `srun` commands in the script, as `#SBATCH --ntasks-per-node` gives them."""


def options_of(arm: TrainedArm) -> CommandOptions:
    """An arm's options; `UserError` names a wrong one."""
    try:
        found = CommandOptions.model_validate(arm.options)
        for word in found.words:
            check_option_name(word.partition("=")[0].lstrip("+-"), word.partition("=")[0])
    except ValidationError as error:
        first = error.errors()[0]
        where, known = ".".join(map(str, first["loc"])), ", ".join(CommandOptions.model_fields)
        got = f" (got {first['input']!r})" if first["type"] not in ("missing", "extra_forbidden") else ""
        raise UserError(
            f"options.{where} of trainer {arm.trainer}: {first['msg'].lower()}{got}; options are {known}"
        ) from None
    except ValueError as error:
        raise UserError(f"options.words: {error}") from None
    if arm.stack:
        raise UserError(f"trainer {arm.trainer} has no stack: the script brings its environment (got {arm.stack!r})")
    return found


COMMAND = Trainer(
    name="command",
    label="a script",
    engines=(*(engine.name for engine in engines()), UNKNOWN),
    driver=Driver(
        job_module="trainers.command.driver",
        trainer_args=lambda arm, workload, seed, stack: options_of(arm).model_dump(mode="json"),
        spread=Spread.OWN,
    ),
)
