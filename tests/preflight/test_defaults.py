"""What stacks compose replaces what the experiment gives, and verl composes what the tests' stand-in says."""

import json

import pytest

from common.errors import UserError
from tests.trainers.verl.environments import build
from trainers.verl.given import parsed, value_of
from workflow.preflight import require_possible
from workflow.preflight.cases import settings_request, settings_requests
from workflow.preflight.composed import resolve_settings

from .plans import ARTICLE, EQUAL, ROLLOUT, as_composed, looked_at, planned


@pytest.mark.full("libraries of a stack")
@pytest.mark.parametrize("raw", [ARTICLE, EQUAL], ids=["0.4.1", "0.9.1"])
def test_what_the_stack_composes_tells_the_same_findings(raw, tmp_path):
    """The tests' stand-in of verl's configuration leads to the findings that verl's own composed settings lead to."""
    plan = planned(raw)
    composed = {}
    for one, run in settings_requests(plan).items():
        python = build(run.spec["trainer_args"]["version"])
        stack = tmp_path / one
        stack.mkdir()
        (stack / "env").symlink_to(python.parents[1])
        (stack / "verify.json").write_text("{}")
        resolve_settings(settings_request(run), stack / "verify.json", tmp_path / f"{one}.json")
        composed[one] = json.loads((tmp_path / f"{one}.json").read_text())
    assert len(composed) == 2
    static, deep = looked_at(plan), looked_at(plan, composed=composed)
    assert all(case.settings.composed for case in deep.cases)
    assert [finding.as_dict() for finding in deep.findings] == [finding.as_dict() for finding in static.findings]
    assert len(static.ledger) > 200 and _uneven(static) == _uneven(deep)
    assert {row.setting: row.values for row in deep.ledger} == {row.setting: row.values for row in static.ledger}


def _uneven(seen):
    return {row.setting.split(" (")[0] for row in seen.ledger if row.verdict in ("different", "unverifiable")}


def test_composed_settings_replace_the_declared_defaults():
    plan = planned(ARTICLE)
    composed = {}
    for one, told in as_composed(plan).items():
        composed[one] = {"version": "0.4.1", "settings": {**told["settings"], f"{ROLLOUT}.enforce_eager": False}}
    codes = {finding.code for finding in looked_at(plan, composed=composed).findings}
    assert "cuda-graphs" not in codes and "eager-and-cache" in codes


def test_the_impossible_is_refused_with_all_that_is(monkeypatch):
    from . import plans

    monkeypatch.setattr("workflow.preflight.preflight.__defaults__", (None, None, plans._told, None))
    assert not require_possible(planned(ARTICLE)).impossible
    lora = {"actor_rollout_ref.model.lora_rank": 16, f"{ROLLOUT}.enforce_eager": False}
    with pytest.raises(UserError) as refused:
        require_possible(planned(ARTICLE, options=lora))
    told = str(refused.value)
    assert "nothing was built or submitted" in told
    assert "1. vllm, sglang: " in told and "free_cache_engine must be false" in told
    assert "2. sglang: " in told and "lora_rank must be 0 with SGLang" in told


def test_seeds_share_their_settings_and_other_settings_do_not():
    plan = planned(EQUAL)
    assert len(plan.runs) == 6 and len(settings_requests(plan)) == 2
    more = planned(EQUAL | {"seeds": [7, 0, 1, 2]})
    assert set(settings_requests(more)) == set(settings_requests(plan))
    requests = [settings_request(run) for run in more.runs.values() if run.spec["arm"] == "vllm"]
    assert all(request == requests[0] for request in requests)
    eager = planned(EQUAL, options={f"{ROLLOUT}.enforce_eager": True})
    assert not set(settings_requests(eager)) & set(settings_requests(plan))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("{a:'b:c',d:[\"e:f\",2]}", {"a": "b:c", "d": ["e:f", 2]}),
        ("{path:/data/x,t:12:30,n:{m:1}}", {"path": "/data/x", "t": "12:30", "n": {"m": 1}}),
        ("[12:30,'a:1']", ["12:30", "a:1"]),
    ],
)
def test_values_are_read_as_hydra_reads_them(text, value):
    assert value_of(text) == value


def test_overrides_are_flat_keys():
    told = dict(parsed(["a.b=1", "+a.c={d:2}", "++e=x", "~a.b"]))
    assert told == {"a.b": None, "a.c.d": 2, "e": "x"}
