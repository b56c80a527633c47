"""How does a workload read in verl's words? (Hydra overrides of verl 0.4.1 and 0.9.1)"""

from __future__ import annotations

from typing import Any

from common.errors import UserError
from trainers.protocol import StackFacts
from trainers.verl.driver.overrides import JOB_KEYS, leaves, override
from trainers.verl.options import checked_leaves
from trainers.verl.words import OVERRULING, VERSIONS, made_equal, settings
from trainers.workload import TrainedArm, Workload

ENGINES = ("vllm", "sglang")
JOB_MODULE = "workflow.jobs.verl_grpo"
RAY = True

_SECTIONS = {version: dict.fromkeys(JOB_KEYS[version], "job") | dict(OVERRULING[version]) for version in VERSIONS}


def trainer_args(arm: TrainedArm, workload: Workload, seed: int, stack: StackFacts) -> dict[str, Any]:
    """verl's version and its Hydra overrides for one run: the workload's words translated, then the arm's options.

    Paths, names and loggers are not among them: `trainers.verl.driver.overrides.job_overrides` adds those on the node.
    An option that contradicts a workload word is refused: it would make the arms unequal behind the reader's back.
    """
    version = stack.trainer_version
    if version not in VERSIONS:
        raise UserError(
            f"the stack {arm.stack} pins verl {version}, whose settings are not known here; known: "
            f"{', '.join(VERSIONS)} (a further one is a column in trainers/verl/words.py)"
        )
    options = list(leaves(arm.options))
    given = {key.lstrip("+"): value for key, value in options}
    ulysses = given.get("actor_rollout_ref.actor.ulysses_sequence_parallel_size", 1)
    dynamic = given.get("actor_rollout_ref.actor.use_dynamic_bsz", False) is True
    owned = settings(workload, arm.engine, seed, version, ulysses if isinstance(ulysses, int) else 1, dynamic)
    try:
        written = [override(key, value) for key, (_, value) in owned.items()]
        written += [override(key, value) for key, value in made_equal(version).items() if key not in given]
        written += [override(key, value) for key, value in checked_leaves(options, owned, _SECTIONS[version], version)]
    except ValueError as error:
        raise UserError(f"options of an arm: {error}") from None
    return {"version": version, "overrides": written}


_STORAGE_UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units"


def least_cpus(args: dict[str, Any], workload: Workload) -> int:
    """What verl's actors reserve in Ray: with fewer it waits for them without a word, for ever.

    As `trainers.verl.driver.train.require_cpus` counts them on the node, from the composed settings; source there.
    """
    gpus = workload.nodes * workload.gpus_per_node
    if args["version"] == "0.4.1":
        return 1 + gpus
    given = dict(one.lstrip("+").split("=", 1) for one in args["overrides"])
    units = int(given.get(_STORAGE_UNITS, 8)) if given.get("trainer.use_v1", "true") == "true" else 0
    return 1 + units + 3 * gpus
