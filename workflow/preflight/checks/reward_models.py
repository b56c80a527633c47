"""Checks a workload's reward models by their files: that they can score, and whether the texts fit their positions."""

from __future__ import annotations

from collections.abc import Iterator

from common.findings import Finding
from node.hub import source_kind
from node.reward_model import context_of, problem_of
from trainers.cases import Case
from trainers.memory_estimate import reward_models_of, weights_gib
from workflow.config.imports import local_path
from workflow.preflight.checks import Surroundings, finding_of

_SOURCE = "docs/rewards.md#a-reward-model"


def reward_models(case: Case, place: Surroundings) -> Iterator[Finding]:
    """Local ones that are no sequence classifiers of one label, and texts that may be longer than they can read."""
    for reward in reward_models_of(case.workload):
        if source_kind(reward["model"]) != "local" or not (folder := local_path(reward["model"])).exists():
            continue  # the inputs are prepared with it, and name what is wrong then
        if problem := problem_of(folder):
            yield finding_of(
                case,
                "impossible",
                "reward-model",
                problem,
                "no completion can be scored with it",
                _SOURCE,
                "workload.rewards: a sequence classifier with one label, with its tokenizer and weights",
            )
            continue
        limits = [one for one in (reward["max_length"], context_of(folder)) if one is not None]
        if limits and case.longest > min(limits):
            yield finding_of(
                case,
                "odd",
                "reward-model-length",
                f"{reward['name']} reads at most {min(limits)} tokens, and prompt and response may have {case.longest}",
                "longer texts lose their beginning, and the prompt with it; the log counts them "
                f"(rewards/{reward['name']}/truncated). Its tokens are not the policy's: the numbers are near",
                _SOURCE,
                "a reward model with more positions, a larger max_length, or shorter responses",
            )


def unsized(case: Case) -> list[str]:
    """The reward models on a case's GPUs whose weights the memory's estimate lacks, in words."""
    return [
        f"memory: the weights of the reward model {reward['model']} are not in the estimate: its files are not here"
        for reward in reward_models_of(case.workload)
        if reward["device"] == "trainer" and weights_gib(reward) is None
    ]
