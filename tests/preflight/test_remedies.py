"""Each remedy that names settings and their values is applied and planned again."""

import copy
import re

import pytest

from common.errors import UserError

from .plans import ARTICLE, found
from .test_checks import FIRES, TRL

# `workload.nodes: 1`, `vllm_tensor_parallel_size: 1 or 2`.
_SETTING = re.compile(r"([\w+]+[._][\w.]+): ((?:\d[\d.]*|[Tt]rue|[Ff]alse|null|sync|fsdp2)(?: or \d+)*)(?=[,;. )]|$)")
# Advice under a condition, or to use another stack.
_CONDITION = re.compile(r"\b(?:where|if|stack|at most|or more|to compare|compare)\b")
_WORDS = {"true": True, "false": False, "null": None}


def remedies(change):
    """The alternatives of a finding's advice: settings that are changed together."""
    alternatives = []
    for text in re.split(r"; or |, or |; |\. ", change):
        pairs = [] if _CONDITION.search(text) else _SETTING.findall(text)
        for number in range(max((len(values.split(" or ")) for _, values in pairs), default=0)):
            chosen = {key: values.split(" or ")[min(number, values.count(" or "))] for key, values in pairs}
            alternatives.append({k: _WORDS.get(v.lower(), int(v) if v.isdigit() else v) for k, v in chosen.items()})
    return alternatives


def applied(changes, remedy, arms):
    """The experiment's changes with a remedy."""
    changes = copy.deepcopy(changes)
    for key, value in remedy.items():
        if key.startswith("workload."):
            changes[key.removeprefix("workload.")] = value
        elif "arms" in changes:
            for arm in arms:
                changes["arms"][arm].setdefault("options", {})[key] = value
        else:
            changes["options"] = {**changes.get("options", {}), key: value}
    return changes


def server(trainer, nodes, gpus, options):
    arm = {"trainer": trainer, "engine": "vllm", "stack": f"{trainer}-gpu-vllm"}
    arms = {"vllm": {**arm, "options": {"vllm_mode": "server", **options}}}
    return {"arms": arms, **TRL, "gpus_per_node": gpus, "nodes": nodes}


SERVERS = [
    (trainer, nodes, gpus, {} if size is None else {"vllm_tensor_parallel_size": size})
    for trainer in ("trl", "swift")
    for nodes in (1, 2, 3)
    for gpus in (2, 4, 8)
    for size in (None, 1, 2, 3, 4, 8, 16)
]
CASES = [(raw, changes) for _, _, raw, changes in FIRES] + [(ARTICLE, server(*one)) for one in SERVERS]


@pytest.mark.parametrize(("raw", "changes"), CASES)
def test_a_remedy_is_not_refused(raw, changes):
    try:
        before = found(raw, **changes)
    except UserError:
        return  # see the test below
    impossible = {code for code, one in before.items() if one.level == "impossible"}
    for code, finding in before.items():
        for remedy in remedies(finding.change):
            after = found(raw, **applied(changes, remedy, finding.arms))
            refused = {what.code: what.what for what in after.values() if what.level == "impossible"}
            assert refused.keys() <= impossible - {code}, (code, remedy, refused)


@pytest.mark.parametrize(("trainer", "nodes", "gpus", "options"), SERVERS)
def test_the_gpus_that_a_refused_servers_message_names_are_planned(trainer, nodes, gpus, options):
    try:
        found(ARTICLE, **server(trainer, nodes, gpus, options))
    except UserError as error:
        if (named := re.search(r"may be (?:1 to (\d)|(\d[\d or]*)) \(got", str(error))) is not None:
            for size in range(1, int(named[1]) + 1) if named[1] else map(int, named[2].split(" or ")):
                found(ARTICLE, **server(trainer, nodes, gpus, {"vllm_tensor_parallel_size": size}))
