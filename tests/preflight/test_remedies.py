"""Each remedy that names settings and their values is applied and planned again."""

import copy
import re

import pytest

from common.errors import UserError

from .plans import ARTICLE, BY_NAME, found
from .test_experiments import ROWS

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


# The row of an arm of TRL on one GPU.
(TRL,) = [row["article"] for row in ROWS if "undeclared-release" in row.get("not", ())]


def server(trainer, nodes, gpus, options):
    arm = {"trainer": trainer, "engine": "vllm", "stack": f"{trainer}-gpu-vllm"}
    arms = {"vllm": {**arm, "options": {"vllm_mode": "server", **options}}}
    return {**TRL, "arms": arms, "gpus_per_node": gpus, "nodes": nodes}


SERVERS = [
    (trainer, nodes, gpus, {} if size is None else {"vllm_tensor_parallel_size": size})
    for trainer in ("trl", "swift")
    for nodes in (1, 2)
    for gpus in (2, 8)
    for size in (None, 1, 3, 4, 16)
]
FOUND = [
    (BY_NAME[name] | row.get("top", {}), row[name])
    for row in ROWS
    if (name := next(iter(row))) in ("article", "equal")
    and {"impossible", "odd"} & set(map(str, row.get("finds", {}).values()))
]


@pytest.mark.parametrize(("raw", "changes"), FOUND + [(ARTICLE, server(*one)) for one in SERVERS])
def test_a_remedy_is_not_refused(raw, changes):
    try:
        before = found(raw, **changes)
    except UserError as error:
        # The GPUs that a refused server's message names are planned.
        named = re.search(r"may be (?:1 to (\d)|(\d[\d or]*)) \(got", str(error))
        sizes = (range(1, int(named[1]) + 1) if named[1] else map(int, named[2].split(" or "))) if named else ()
        for size in sizes:
            found(raw, **applied(changes, {"vllm_tensor_parallel_size": size}, ("vllm",)))
        return
    impossible = {code for code, one in before.items() if one.level == "impossible"}
    for code, finding in before.items():
        for remedy in remedies(finding.change):
            after = found(raw, **applied(changes, remedy, finding.arms))
            refused = {what.code: what.what for what in after.values() if what.level == "impossible"}
            assert refused.keys() <= impossible - {code}, (code, remedy, refused)
