"""Checks one case of any trainer against its GPUs, its model and its walltime."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any

from common.findings import Finding
from common.model_facts import ModelFacts, model_facts
from node.built_in_rewards import BUILT_IN
from trainers.cases import Case
from trainers.registry import driven_releases, driven_trees, nearest_tree
from workflow.preflight.cases import LaunchContext
from workflow.preflight.texts import finding
from workflow.runs.progress import readable_duration

_FOLDERS = ("HOME", "DIR", "CACHE", "PATH", "ROOT")


def _model(case: Case) -> ModelFacts | None:
    return model_facts(str(case.workload["model"]["source"]))


def learning_rate_warmup(case: Case) -> Iterator[Finding]:
    """A learning rate warm-up that outlasts the run."""
    warmup, steps = int(case.workload.get("lr_warmup_steps") or 0), int(case.workload["steps"])
    if warmup and warmup >= steps:
        yield finding("lr-warmup", case.arm, warmup=warmup, steps=steps)


def checkpoints(case: Case) -> Iterator[Finding]:
    """Checkpoints that would come after the run's end."""
    steps, every = int(case.workload["steps"]), int(case.workload.get("save_steps") or 0)
    if case.trainer.trains and every > steps:
        yield finding("save-steps", case.arm, every=every, steps=steps, fewer=max(1, steps // 4))


def expanded(case: Case) -> Iterator[Finding]:
    """A folder in an arm's variables with a variable or a `~` that nothing expands."""
    for name, value in case.env.items():
        if name.endswith(_FOLDERS) and re.search(r"\$\{?[A-Za-z_]|^~", value) and not case.imported:
            yield finding("not-expanded", case.arm, name=name, value=value)


def declared_release(case: Case) -> Iterator[Finding]:
    """A release whose timers are not declared."""
    name = case.trainer.name
    if case.imported or not case.trainer.trains or any(tree.matches(case.version) for tree in driven_trees(name)):
        return
    known, nearest = ", ".join(driven_releases(name)), nearest_tree(name, case.version, "").name
    trainer = case.trainer.label or name
    yield finding("undeclared-release", case.arm, trainer=trainer, version=case.version, known=known, nearest=nearest)


def reward_packages(case: Case) -> Iterator[Finding]:
    """A built-in reward whose package the stack lacks: an environment as found may."""
    if case.imported or not case.trainer.trains or not case.pins.as_found:
        return
    for name in dict.fromkeys(reward.get("name") for reward in case.workload["rewards"]):
        needed = BUILT_IN[name].packages if name in BUILT_IN else ()
        for package in (one for one in needed if one not in case.pins.packages):
            yield finding("reward-package", case.arm, name=name, package=package, stack=case.stack)


def heads(case: Case) -> Iterator[Finding]:
    """Tensor parallelism that does not divide the model's heads."""
    model, tp = _model(case), case.tensor_parallel
    if model is None or tp == 1:
        return
    wrong = []
    if model.heads % tp:
        wrong.append(f"{model.heads} attention heads")
    if not model.kv_heads_fit(tp):
        wrong.append(f"{model.kv_heads} heads of keys and values")
    if wrong:
        fits = [n for n in (1, 2, 4, 5, 8, 10, 16) if model.heads_fit(n)]
        allowed = " or ".join(str(n) for n in fits if case.allows_tensor_parallel(n))
        # Of an engine that has all GPUs of its run only their number can be changed.
        key = case.trainer.keys.get("engine_gpus", (case.trainer.key("tensor_parallel"),))[0]
        change = (
            f"{key}: {allowed}"
            if allowed
            else f"a smaller {key} ({' or '.join(map(str, fits))}), and a workload.batch_size that the trainer's other "
            "GPUs share equally"
        )
        facts: dict[str, Any] = {"gpus": tp, "engine": case.engine.label, "model": model.source, "change": change}
        yield finding("tensor-parallel-heads", case.arm, wrong=" and ".join(wrong), **facts)


def walltime(case: Case, launch: LaunchContext) -> Iterator[Finding]:
    """Checkpoints that are too rare for the walltime: by the run's seconds per step, where they are known."""
    life, pace = launch.site.life_s, launch.paces.get(case.arm)
    if not life or not case.on_gpu:
        return
    save, steps = int(case.workload.get("save_steps") or 0), int(case.workload["steps"])
    source = f"docs/slurm.md: a job resumes from its last checkpoint; profile {launch.site.profile or 'unknown'}"
    facts: dict[str, Any] = {"source": source, "life": readable_duration(life), "steps": steps, "save": save}
    if pace is None:
        if not save:
            yield finding("no-checkpoints", case.arm, **facts)
        return
    if steps * pace <= life:
        return
    between, grace = save * pace, launch.site.stop_grace_s
    facts |= {"pace": readable_duration(pace), "between": readable_duration(between), "grace": readable_duration(grace)}
    if not 0 < between <= life:
        comes = f"a checkpoint comes every {facts['between']}" if save else "there are no checkpoints"
        facts |= {"whole": readable_duration(steps * pace), "checkpoints": comes}
        yield finding("never-ends", case.arm, fewer=max(1, int(life / 4 // pace)), **facts)
    elif between > life / 4:
        yield finding("rare-checkpoints", case.arm, fewer=max(1, int(life / 10 // pace)), **facts)
    if pace > grace:
        yield finding("stop-grace", case.arm, longer=int(pace * 1.5), **facts)


CHECKS_OF_IMPORTED = (heads,)
CHECKS = (learning_rate_warmup, checkpoints, expanded, declared_release, reward_packages, *CHECKS_OF_IMPORTED)


def experiment_findings(seeds: Mapping[str, int], imported: Container[str], warmup_steps: int) -> Iterator[Finding]:
    """Findings of the experiment as a whole; `seeds` is the number of runs of each arm with another seed."""
    if single := [arm for arm, found in seeds.items() if found == 1]:
        more = "; import three runs or more of an arm" if any(arm in imported for arm in single) else ""
        yield finding("one-seed", *single, imports=more)
    trained = [arm for arm in seeds if arm not in imported]
    if trained and warmup_steps == 0:
        yield finding("no-warmup", *trained)
