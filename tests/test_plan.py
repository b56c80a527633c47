"""The plan: ids, fingerprints, sweeps, and what they depend on."""

import copy
import json
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from workflow.config.plan import StackFacts, load_plan, plan_runs, stack_facts
from workflow.config.reading import parse_config

from .two_arms import two_arms

ROOT = Path(__file__).resolve().parents[1]
RAW = two_arms()


def planned(lock="0" * 12, **changes):
    """The default experiment with top-level keys replaced and stacks of a given lock."""
    raw = copy.deepcopy(RAW) | changes

    def facts(stack):
        return StackFacts("trl", "vllm" if "vllm" in stack else "transformers", "cpu", "1.16.0", lock)

    return plan_runs(parse_config(raw), facts)


def test_the_arms_of_a_pair_are_submitted_in_turns():
    plan = planned(seeds=[0, 1], sweep={"workload.temperature": [0.9, 1.0]})
    order = sorted(plan.runs, key=plan.priorities.__getitem__, reverse=True)
    assert [run.rpartition("-")[2] for run in order] == ["s0"] * 4 + ["s1"] * 4
    first = {seed: next(run for run in order if run.endswith(seed)).partition("-")[0] for seed in ("s0", "s1")}
    assert first == {"s0": "transformers", "s1": "vllm"}


def test_ids_are_stable_when_other_runs_come_and_go():
    few, many = planned(seeds=[3]).runs, planned(seeds=[1, 3, 5], description="other words").runs
    for run_id, run in few.items():
        assert many[run_id] == run


def test_the_fingerprint_covers_spec_and_lock():
    run = planned().runs["vllm-s0"]
    assert planned(lock="1" * 12).runs["vllm-s0"].fingerprint != run.fingerprint
    workload = copy.deepcopy(RAW["workload"]) | {"steps": 13}
    assert planned(workload=workload).runs["vllm-s0"].fingerprint != run.fingerprint
    assert planned(warmup_steps=5).runs["vllm-s0"].fingerprint == run.fingerprint, "what is reported retrains nothing"


@pytest.mark.parametrize("name", ["camino-2025", "camino-2025-ablation", "camino-2025-published"])
def test_the_order_in_which_settings_are_written_trains_nothing_anew(name):
    """verl gets its settings as a list, whose order is a part of the run's fingerprint."""
    raw = yaml.safe_load((ROOT / "experiments" / f"{name}.yaml").read_text(encoding="utf-8"))
    facts = cache(stack_facts)

    def turned(value):
        return {k: turned(v) for k, v in reversed(value.items())} if isinstance(value, dict) else value

    written, other = plan_runs(parse_config(raw), facts), plan_runs(parse_config(turned(raw)), facts)
    wanted = {one.fingerprint for one in (*written.runs.values(), *written.imports.values())}
    assert {one.fingerprint for one in (*other.runs.values(), *other.imports.values())} == wanted


@given(
    st.lists(
        st.one_of(
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=60),
            st.floats(allow_nan=False, allow_infinity=False),
            st.booleans(),
        ),
        min_size=1,
        max_size=6,
        unique_by=lambda value: (type(value).__name__, value),
    )
)
def test_any_swept_value_gives_a_folder_name_of_its_own(values):
    runs = planned(sweep={"arms.vllm.options.generation_kwargs": values}, seeds=[0]).runs
    ids = [run_id for run_id in runs if run_id.startswith("vllm")]
    assert len(set(ids)) == len(values)
    for run_id in ids:
        assert len(run_id) <= 80
        assert "/" not in run_id and run_id not in (".", "..") and run_id.isascii() and run_id.isprintable()


def test_local_files_are_the_data_and_all_of_a_model_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    model = tmp_path / "model"
    for name in ("config.json", "shards/b.safetensors", "shards/a.safetensors", ".git/HEAD"):
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).write_text("{}")
    (tmp_path / "rows.jsonl").write_text("{}")
    workload = copy.deepcopy(RAW["workload"]) | {"data": {"source": "~/rows.jsonl"}, "model": {"source": "~/model"}}
    plan = load_plan(RAW | {"workload": workload})
    (inputs_id,) = plan.inputs
    names = ("rows.jsonl", "model/config.json", "model/shards/a.safetensors", "model/shards/b.safetensors")
    assert plan.local_files(inputs_id) == [str(tmp_path / name) for name in names]


def test_the_plan_is_the_same_after_a_journey_as_json():
    """As the rule `plan` hands the configuration to its command."""
    facts = cache(stack_facts)
    for file in [ROOT / "config.yaml", *sorted((ROOT / "experiments").glob("*.yaml"))]:
        raw = yaml.safe_load(file.read_text(encoding="utf-8"))
        one, same = (plan_runs(parse_config(some), facts) for some in (raw, json.loads(json.dumps(raw))))
        assert one.as_json() == same.as_json(), file
