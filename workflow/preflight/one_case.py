"""Checks one case of any trainer against its GPUs, its model and its walltime."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping

from common.findings import Finding
from common.model_facts import ModelFacts, model_facts
from node.built_in_rewards import BUILT_IN
from trainers.cases import Case
from trainers.registry import driven_releases, driven_trees, nearest_tree
from workflow.preflight.cases import LaunchContext
from workflow.runs.progress import readable_duration
from workflow.slurm.site import Site

_PAGE = "docs/preflight.md#odd"
_FOLDERS = ("HOME", "DIR", "CACHE", "PATH", "ROOT")


def _model(case: Case) -> ModelFacts | None:
    return model_facts(str(case.workload["model"]["source"]))


def learning_rate_warmup(case: Case) -> Iterator[Finding]:
    """A learning rate warm-up that outlasts the run."""
    warmup, steps = int(case.workload.get("lr_warmup_steps") or 0), int(case.workload["steps"])
    if warmup and warmup >= steps:
        yield Finding(
            "odd",
            "lr-warmup",
            (case.arm,),
            f"the learning rate warms up over {warmup} steps, and the run has {steps}",
            "it never reaches the configured rate",
            _PAGE,
            "workload.lr_warmup_steps: fewer than steps, or 0",
        )


def checkpoints(case: Case) -> Iterator[Finding]:
    """Checkpoints that would come after the run's end."""
    steps, every = int(case.workload["steps"]), int(case.workload.get("save_steps") or 0)
    if case.trainer.trains and every > steps:
        yield Finding(
            "odd",
            "save-steps",
            (case.arm,),
            f"a checkpoint every {every} steps, and the run has {steps}",
            "the run has no checkpoint: after a stop it starts again",
            _PAGE,
            f"workload.save_steps: {max(1, steps // 4)}, or 0 for none",
        )


def expanded(case: Case) -> Iterator[Finding]:
    """A folder in an arm's variables with a variable or a `~` that nothing expands."""
    for name, value in case.env.items():
        if name.endswith(_FOLDERS) and re.search(r"\$\{?[A-Za-z_]|^~", value) and not case.imported:
            yield Finding(
                "odd",
                "not-expanded",
                (case.arm,),
                f"{name}={value}: the value of an experiment's env is text",
                "the run uses a folder of that very name",
                "docs/configuration.md",
                f"write the folder's path, or export {name} in the profile's setup script",
            )


def declared_release(case: Case) -> Iterator[Finding]:
    """A release whose timers are not declared."""
    name = case.trainer.name
    if case.imported or not case.trainer.trains or any(tree.matches(case.version) for tree in driven_trees(name)):
        return
    known = ", ".join(driven_releases(name))
    yield Finding(
        "odd",
        "undeclared-release",
        (case.arm,),
        f"{case.trainer.label or name} {case.version} is not among the releases whose timers are declared ({known})",
        f"the report reads its timers as those of {nearest_tree(name, case.version, '').name}; timers that it does not "
        "have stand beside the sums, and its defaults are not in the ledger",
        "docs/timers.md",
        f"a stack with a declared release, or declare {case.version} (docs/timers.md)",
    )


def reward_packages(case: Case) -> Iterator[Finding]:
    """A built-in reward whose package the stack lacks: an environment as found may."""
    if case.imported or not case.trainer.trains or not case.pins.as_found:
        return
    for name in dict.fromkeys(reward.get("name") for reward in case.workload["rewards"]):
        needed = BUILT_IN[name].packages if name in BUILT_IN else ()
        for package in (one for one in needed if one not in case.pins.packages):
            yield Finding(
                "impossible",
                "reward-package",
                (case.arm,),
                f"the reward {name} needs {package}, and the stack {case.stack} does not have it",
                "the first comparison would end the run",
                "node/built_in_rewards.py",
                f"install {package} in its environment and record it again, or use another reward",
            )


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
        yield Finding(
            "impossible",
            "tensor-parallel-heads",
            (case.arm,),
            f"{' and '.join(wrong)} cannot be split over {tp} GPUs",
            f"{case.engine.label} ends with an assertion when it builds the model",
            f"{model.source}; sglang 0.4.6.post5, srt/models/llama.py:121 to 131 (vLLM's is the same)",
            f"{key}: {allowed}"
            if allowed
            else f"a smaller {key} ({' or '.join(map(str, fits))}), and a workload.batch_size that the trainer's other "
            "GPUs share equally",
        )


def walltime(case: Case, launch: LaunchContext) -> Iterator[Finding]:
    """Checkpoints that are too rare for the walltime."""
    life, pace = launch.site.life_s, launch.paces.get(case.arm)
    if not life or not case.on_gpu:
        return
    save, steps = int(case.workload.get("save_steps") or 0), int(case.workload["steps"])
    source = f"docs/slurm.md: a job resumes from its last checkpoint; profile {launch.site.profile or 'unknown'}"
    if pace is not None:
        yield from _paced(case, launch.site, source, pace, steps, save)
    elif not save:
        yield Finding(
            "odd",
            "no-checkpoints",
            (case.arm,),
            f"no checkpoints (save_steps: 0), and a job is stopped after {readable_duration(life)} of training",
            "a longer run would restart from nothing each time and never end; its step time is not known yet "
            "(give --seconds-per-step X)",
            source,
            "workload.save_steps: as many steps as you can afford to lose",
        )


def _paced(case: Case, site: Site, source: str, pace: float, steps: int, save: int) -> Iterator[Finding]:
    """Findings of a run that outlasts one life of its job, by its seconds per step."""
    life, whole, between = site.life_s, steps * pace, save * pace
    if whole <= life:
        return
    trains, comes = readable_duration(life), readable_duration(between)
    if not 0 < between <= life:
        yield Finding(
            "impossible",
            "never-ends",
            (case.arm,),
            f"{steps} steps of about {readable_duration(pace)} take {readable_duration(whole)}, a job trains {trains}, "
            f"and {f'a checkpoint comes every {comes}' if save else 'there are no checkpoints'}",
            "every life of the job would start at the same step as the one before",
            source,
            f"workload.save_steps: {max(1, int(life / 4 // pace))} or fewer; or a longer runtime in the profile",
        )
    elif between > life / 4:
        yield Finding(
            "odd",
            "rare-checkpoints",
            (case.arm,),
            f"a checkpoint every {save} steps, about {comes}",
            f"a job trains {trains} and loses its last steps unless it can write a checkpoint at its time limit; "
            "a failed node loses as many",
            source,
            f"workload.save_steps: {max(1, int(life / 10 // pace))}",
        )
    if pace > site.stop_grace_s:
        yield Finding(
            "odd",
            "stop-grace",
            (case.arm,),
            f"a step takes about {readable_duration(pace)}, and the stop signal comes "
            f"{readable_duration(site.stop_grace_s)} before the job's limit",
            "the running step cannot finish: every life of the job loses it",
            source,
            f"stop_grace_s in the profile: {int(pace * 1.5)} or more",
        )


CHECKS_OF_IMPORTED = (heads,)
CHECKS = (learning_rate_warmup, checkpoints, expanded, declared_release, reward_packages, *CHECKS_OF_IMPORTED)


def experiment_findings(seeds: Mapping[str, int], imported: Container[str], warmup_steps: int) -> Iterator[Finding]:
    """Findings of the experiment as a whole; `seeds` is the number of runs of each arm with another seed."""
    single = tuple(arm for arm, found in seeds.items() if found == 1)
    if single:
        more = "; import three runs or more of an arm" if any(arm in imported for arm in single) else ""
        yield Finding(
            "odd",
            "one-seed",
            single,
            "one run per arm (one seed)",
            "lengths, and therefore times, differ between runs; one run gives no confidence interval",
            _PAGE,
            f"seeds: three or more{more}",
        )
    trained = tuple(arm for arm in seeds if arm not in imported)
    if trained and warmup_steps == 0:
        yield Finding(
            "odd",
            "no-warmup",
            trained,
            "no step is skipped as warm-up (warmup_steps: 0)",
            "the first step includes compilation, graph capture and cold caches, which differ between engines",
            _PAGE,
            "warmup_steps: 1 or more",
        )
