"""One row an experiment: what its plan refuses, what a run's specification then has, and what the preflight finds."""

import copy
import json
from pathlib import Path

import pytest
import yaml

from common.dotted import flatten
from common.errors import UserError
from common.files import ROOT, inputs_sha256
from tests.two_arms import two_arms
from trainers.resolve import resolved
from workflow.commands.finding_lines import head_lines
from workflow.config.entry import require_readable
from workflow.config.plan import load_plan, plan_runs, stack_facts
from workflow.config.reading import parse_config, read_yaml
from workflow.preflight import preflight
from workflow.preflight.cases import LaunchContext, settings_request, settings_requests
from workflow.preflight.variables import VARIABLES, variables_of
from workflow.slurm.site import Site

from . import plans
from .plans import EQUAL, found

ROWS = yaml.safe_load(Path(__file__).with_name("experiments.yaml").read_text())


def name_of(row):
    says = str(row.get("refused", "")) or ", ".join(map(str, (*row.get("finds", ()), *row.get("not", ()))))
    return f"{next(iter(row))}-{says}"[:70]


def at(raw, path, value):
    """Sets what is at a dotted path: of a list in its last entry; with `+` it is one more of a list."""
    *way, last = path.split(".")
    for key in way:
        raw = raw.setdefault(key, {})
        raw = raw[-1] if isinstance(raw, list) else raw
    if last.endswith("+"):
        raw[last[:-1]].append(copy.deepcopy(value))
    else:
        raw[last] = copy.deepcopy(value)


def raw_of(row):
    """The configuration of an experiment of this checkout with the row's changes."""
    name, changes = next(iter(row.items()))
    raw = two_arms() if name == "quickstart" else read_yaml(ROOT / f"{name}.yaml")
    for path, value in (changes or {}).items():
        at(raw, path, value)
    return raw


def plan_of(row):
    """The plan of a row; `article` and `equal` have stacks of the tests, and settings as these would compose them."""
    name, changes = next(iter(row.items()))
    if name in plans.BY_NAME:
        return plans.planned(plans.BY_NAME[name] | row.get("top", {}), **changes)
    if name == "logs":
        return plan_runs(
            parse_config({"experiment": "logs", "baseline": next(iter(changes)), "arms": changes}), plans._facts
        )
    return load_plan(raw_of(row)) if "files" in row else plan_runs(parse_config(raw_of(row)), stack_facts)


def planned(row):
    """The plan, after a look at the row's own data and models."""
    plan = plan_of(row)
    if "files" in row:
        require_readable(plan)
    return plan


def seen_of(row, plan, folder):
    name = next(iter(row))
    (folder / "setup.sh").write_text(row.get("setup", ""))
    place = LaunchContext(
        Site({key: str(value) for key, value in row["site"].items()}, Path("site")) if "site" in row else Site(),
        row.get("paces", {}),
        variables_of(folder / "setup.sh", row.get("shell", {})),
    )
    if name == "logs" or name in plans.BY_NAME:
        return preflight(plan, place, plans.as_composed(plan), plans._told, row.get("held", {}))
    return preflight(plan, place)


def require(finding, expected):
    """`expected` is the finding's level, or fields of it: of a text a part."""
    if isinstance(expected, str):
        expected = {"level": expected}
    for field, value in expected.items():
        got = getattr(finding, field)
        assert json.loads(json.dumps(got)) == value if isinstance(value, list) else value in got, finding


def write(folder, files):
    """The files of a row: a text, a line and how many times it is there, or none (null)."""
    for name, content in files.items():
        if content is not None:
            line, times = content if isinstance(content, list) else (content, 1)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("\n".join([line] * times))


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_an_experiment(row, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, row.get("files", {}))
    if "refused" in row:
        with pytest.raises(UserError) as caught:
            planned(row)
        words = row["refused"] if isinstance(row["refused"], list) else [row["refused"]]
        told = str(caught.value)
        assert all(one in told for one in words) and told.count("\n  - ") <= len(words), told
        assert "s3cr3t" not in told
        return
    plan = planned(row)
    assert list(plan.all_runs) == row.get("runs", list(plan.all_runs))
    for run, values in row.get("spec", {}).items():
        spec = flatten(plan.runs[run].spec)
        for path, value in values.items():
            assert plan.runs[run].spec.get(path, spec.get(path)) == value, (path, spec)
    seen = seen_of(row, plan, tmp_path)
    found = {finding.code: finding for finding in seen.findings}
    for code, expected in row.get("finds", {}).items():
        require(found[code], expected)
    assert set(row.get("held", ())) <= plan.imports.keys(), "no such run"
    assert row.get("unverifiable", "") in " ".join(seen.unverifiable) and "s3cr3t" not in str(seen.as_json())
    assert not set(row.get("not", ())) & found.keys(), found
    for level in ("unequal", "impossible"):
        assert level not in row or [one.code for one in seen.findings if one.level == level] == row[level]
    rows = {one.setting.partition(" (")[0]: one for one in seen.ledger}
    for name, expected in row.get("ledger", {}).items():
        verdict, *values = expected if isinstance(expected, list) else [expected]
        assert (rows[name].verdict if name in rows else None) == verdict, name
        assert not values or list(rows[name].values.values()) == values


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: variable.name)
def test_a_variable_of_one_arm_is_unequal_and_of_all_odd(variable):
    value = next(value for value in ("1", "0", "INFO", "DEBUG") if variable.costs(value))
    code = variable.name.lower().replace("_", "-")
    assert found(EQUAL, env={variable.name: value})[code].level == "odd"
    arms = {name: dict(arm) for name, arm in EQUAL["arms"].items()}
    arms["sglang"]["env"] = {variable.name: value}
    one = found(EQUAL, arms=arms)[code]
    assert (one.level, one.arms) == ("unequal", ("sglang",))
    assert code not in found(EQUAL, env={variable.name: "warn"}) or variable.costs("warn")


def test_a_release_whose_timers_are_not_declared_is_told_before_the_queue(monkeypatch):
    monkeypatch.setitem(plans._VERSIONS, "trl", "1.99.0")
    (row,) = [row for row in ROWS if "undeclared-release" in row.get("not", ())]
    finding = found(plans.ARTICLE, **row["article"])["undeclared-release"]
    assert (finding.level, finding.arms) == ("odd", ("vllm",))
    assert "TRL 1.99.0 is not among" in finding.what and "as those of trl 1." in finding.why


def test_of_imports_with_stack_and_workload_all_is_known_that_is_of_a_training():
    trained, read = (
        preflight(plans.planned(plans.BY_NAME[name]), None, {}, plans._told) for name in ("article", "imported")
    )
    assert trained.ledger == read.ledger and not read.unverifiable
    assert "imported" in next(line for line in head_lines(read) if "sglang" in line)


def smoke_test(folder, code, **changes):
    """The plan of the smoke test with a user's rewards, or with a reward model."""
    (folder / "mine.py").write_text(code)
    row = {
        "experiments/cpu-smoke": changes
        or {"workload.rewards+": {"source": str(folder / "mine.py"), "function": "score"}}
    }
    return load_plan(raw_of(row))


def test_a_users_rewards_are_in_the_specification_and_in_the_fingerprint(tmp_path):
    code = "def score(completions):\n    return [0.0 for _ in completions]\n"
    plan = smoke_test(tmp_path, code)
    run = plan.runs["vllm-s0"]
    *built_in, own = run.spec["workload"]["rewards"]
    assert built_in == [{"name": name, "weight": 1.0, "options": {}} for name in ("accuracy", "format")]
    assert (own["source"], own["code"], own["function"]) == ("mine.py", code, "score")
    # The ledger, and the page with it, show the hash and not the text.
    ledger = str(preflight(plan).as_json())
    assert own["sha256"] in ledger and "return [0.0" not in ledger
    # Another place of the same text is the same run; another text is another, and does not reach the plan that is made.
    (elsewhere := tmp_path / "elsewhere").mkdir()
    assert smoke_test(elsewhere, code).runs["vllm-s0"].fingerprint == run.fingerprint
    assert smoke_test(tmp_path, code.replace("0.0", "1.0")).runs["vllm-s0"].fingerprint != run.fingerprint
    assert own["code"] == settings_request(run)["rewards"][-1]["code"] == code and len(settings_requests(plan)) == 2
    # The stack loads it, whatever the trainer, before anything waits.
    lacking = smoke_test(tmp_path, "import not_here\ndef score(completions): ...\n").runs["vllm-s0"]
    with pytest.raises(UserError, match=r"No module named 'not_here' \(mine.py, line 1\)"):
        resolved(settings_request(lacking), "no.such.module")
    # No top-level code of the file runs as it is planned.
    assert smoke_test(tmp_path, "raise SystemExit('it was run')\nasync def score(): ...\n").runs
    assert smoke_test(tmp_path, "from not_here import *\n").runs


def test_a_reward_model_is_in_the_specification_and_its_files_are_inputs(tmp_path):
    (row,) = [row for row in ROWS if "reward-model-length" in row.get("not", ())]
    write(tmp_path, row["files"])

    def planned(model=tmp_path / "rm", **words):
        return smoke_test(tmp_path, "", **{"workload.rewards+": {"model": str(model), **words}})

    plan = planned(weight=0.5)
    run = plan.runs["vllm-s0"]
    defaults = {"max_length": None, "batch_size": 16, "dtype": "float32", "device": "trainer"}
    expected = {"model": str(tmp_path / "rm"), "revision": None, "name": "reward_model", "weight": 0.5, **defaults}
    assert run.spec["workload"]["rewards"][-1] == expected
    assert run.spec["trainer_args"]["reward_weights"][-1] == 0.5
    assert plan.inputs[run.inputs_id]["reward_models"] == [{"model": str(tmp_path / "rm"), "revision": None}]
    files = {str(tmp_path / "rm" / name) for name in ("config.json", "model.safetensors")}
    assert files <= set(plan.local_files(run.inputs_id))
    for other in ({"weight": 0.6}, {"weight": 0.5, "max_length": 99}, {"weight": 0.5, "dtype": "bfloat16"}):
        assert planned(**other).runs["vllm-s0"].fingerprint != run.fingerprint
    pinned = [planned("a/b", revision=of).runs["vllm-s0"] for of in ("0" * 40, "1" * 40)]
    assert pinned[0].fingerprint != pinned[1].fingerprint and pinned[0].inputs_id != pinned[1].inputs_id
    one, other = (
        inputs_sha256({"reward_models": {"rm": {"sha256": of}}, "data": {"sha256": "d"}, "model": {"sha256": "m"}})
        for of in "ab"
    )
    assert one["reward_models_sha256"] != other["reward_models_sha256"]
