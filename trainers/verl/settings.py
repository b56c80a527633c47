"""Writes a workload and an arm's options as verl's settings (Hydra overrides)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from common.errors import UserError
from common.messages import short
from trainers.protocol import StackFacts
from trainers.verl import packaged
from trainers.verl.driver.overrides import leaves, override
from trainers.verl.releases import Release, release_named, releases
from trainers.verl.releases.release import Words
from trainers.verl.words import settings
from trainers.workload import TrainedArm, Workload


def trainer_args(arm: TrainedArm, workload: Workload, seed: int, stack: StackFacts) -> dict[str, Any]:
    """verl's version and its Hydra overrides for one run: the workload's words translated, then the arm's options.

    Paths, names and loggers are not among them: `trainers.verl.driver.composed.job_overrides` adds those on the node.
    An option that contradicts a workload word is refused: it would make the arms unequal behind the reader's back.
    """
    known = {one.version: one for one in releases()}
    release = known.get(stack.trainer_version)
    if release is None:
        raise UserError(
            f"the stack {arm.stack} pins verl {stack.trainer_version}, whose settings are not known here; known: "
            f"{', '.join(known)} (a further one is a file in trainers/verl/releases/)"
        )
    options = list(leaves(arm.options))
    given = {key.lstrip("+"): value for key, value in options}
    ulysses = given.get("actor_rollout_ref.actor.ulysses_sequence_parallel_size", 1)
    dynamic = given.get("actor_rollout_ref.actor.use_dynamic_bsz", False) is True
    owned = settings(workload, arm.engine, seed, release, ulysses if isinstance(ulysses, int) else 1, dynamic)
    try:
        written = [override(key, value) for key, (_, value) in owned.items()]
        written += [override(key, value) for key, value in release.made_equal.items() if key not in given]
        written += [override(key, value) for key, value in _checked_leaves(options, owned, release)]
    except ValueError as error:
        raise UserError(f"options of an arm: {error}") from None
    return {"version": release.version, "overrides": written}


_STORAGE_UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units"


def least_cpus(args: dict[str, Any], workload: Workload) -> int:
    """What verl's actors reserve in Ray: with fewer it waits for them without a word, for ever.

    As `trainers.verl.driver.train.require_cpus` counts them on the node, from the composed settings; source there.
    """
    gpus = workload.nodes * workload.gpus_per_node
    release = release_named(args["version"])
    given = dict(one.lstrip("+").split("=", 1) for one in args["overrides"])
    v1 = release.storage_units and given.get("trainer.use_v1", "true") == "true"
    return 1 + (int(given.get(_STORAGE_UNITS, release.storage_units)) if v1 else 0) + release.cpus_with_gpu * gpus


# Where a run's seed is written; no option may set these.
_SEED_KEYS = frozenset({"data.seed", "actor_rollout_ref.actor.data_loader_seed", "actor_rollout_ref.rollout.seed"})


def seedless(args: dict[str, Any]) -> dict[str, Any]:
    """The same settings of a run with seed 0."""
    keys = (one.partition("=")[0] for one in args["overrides"])
    zero = (f"{key}=0" if key.lstrip("+") in _SEED_KEYS else "" for key in keys)
    return {**args, "overrides": [new or old for new, old in zip(zero, args["overrides"], strict=True)]}


def _checked_leaves(leaves: list[tuple[str, Any]], owned: Words, release: Release) -> Iterator[tuple[str, Any]]:
    """The options that are free; a `UserError` at the first that is not.

    `owned` are single keys with the word that each follows from; the release knows whole parts of its configuration.
    """
    parents, sections = _parents(owned), dict.fromkeys(release.job_keys, "job") | dict(release.overruling)
    for key, value in leaves:
        bare = key.lstrip("+")
        word = _owner(bare, owned, sections)
        if word is not None:
            raise UserError(
                f"options.{key} of an arm is not free: {_whose(word)}, so that it holds for every arm alike "
                f"(got {short(value)})"
            )
        if bare in parents and not (isinstance(value, Mapping) and not value):
            raise UserError(f"options.{key} is a section of verl's configuration, not one setting (got {short(value)})")
        if bare == "hydra" or bare.startswith("hydra."):
            raise UserError(f"options.{key} is a setting of Hydra's command line, and would do nothing here; remove it")
        if "oc.env" in str(value):
            # Resolved settings are written into results, and with them whatever the variable holds.
            raise UserError(
                f"options.{key} reads an environment variable (got {short(value)}); write the value itself, or give "
                "the variable in the arm's env"
            )
        if wrong := packaged.problem(release.version, key, value):
            raise UserError(f"options.{key} of an arm: {wrong}")
        yield key, value


def _owner(bare: str, owned: Words, sections: Mapping[str, str]) -> str | None:
    for name in (bare, f"+{bare}"):
        if name in owned:
            return owned[name][0]
    at = bare
    while at:
        if at in sections:
            return sections[at]
        at = at.rpartition(".")[0]
    return None


def _whose(word: str) -> str:
    if word == "job":
        return "the job sets it on the node (paths, names, loggers, resuming, the reward's file)"
    if not word:
        return "this project compares GRPO, and sets it itself"
    if word in ("engine", "seeds"):
        return f"it follows from {'the arm' if word == 'engine' else 'the experiment'}'s {word}. Change that instead"
    return f"it follows from workload.{word}. Change the workload's own word instead"


def _parents(owned: Words) -> set[str]:
    found: set[str] = set()
    for key in owned:
        at = key.lstrip("+").rpartition(".")[0]
        while at and at not in found:
            found.add(at)
            at = at.rpartition(".")[0]
    return found
