"""verl's adapter: what a workload becomes, composed by Hydra from verl's own configuration of both versions."""

import functools
import json
import re
from pathlib import Path

import pytest
import yaml

from common.dotted import flatten
from common.errors import UserError
from tests.trainers.composed import composed_by
from tests.trainers.verl.tiers import RELEASES, SECOND
from trainers.protocol import StackFacts
from trainers.verl import settings as verl
from trainers.verl.driver.composed import job_overrides
from trainers.verl.driver.overrides import override
from trainers.verl.releases import release_named
from trainers.verl.settings import settings
from trainers.workload import Workload
from workflow.config.model import Arm

A, R, M = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
CASES = yaml.safe_load(Path(__file__).with_name("settings.yaml").read_text(encoding="utf-8"))
# Everything that Hydra's grammar or YAML could mistake for something else.
VALUES = json.loads(Path(__file__).with_name("values.json").read_text(encoding="utf-8"))
WORKLOAD = {
    "model": {"source": "builtin:tiny-qwen2"}, "data": {"source": "builtin:arithmetic"},
    "rewards": [{"name": "accuracy"}], "steps": 12, "batch_size": 32, "num_generations": 4, "micro_batch_size": 2,
    "max_prompt_length": 64, "max_response_length": 128, "gpus_per_node": 2,
}  # fmt: skip


def overrides(version, options=None, *, engine="vllm", seed=5, **words):
    """What the adapter makes of a small workload, with some words and an arm's options replaced."""
    stack = f"verl{version[:3].replace('.', '')}-{engine}"
    arm = Arm(trainer="verl", engine=engine, stack=stack, options=options or {})
    facts = StackFacts("verl", engine, "cuda", version, "0" * 12)
    args = verl.trainer_args(arm, Workload.model_validate({**WORKLOAD, **words}), seed, facts)
    assert args["version"] == version
    return args["overrides"]


def whole(key):
    """A key with the section that settings.yaml leaves out."""
    return re.sub(r"^(\+*)(actor|rollout|ref|model)(?=[.=]|$)", r"\1actor_rollout_ref.\2", key)


def asked(case, version):
    """The overrides of a case."""
    options = {whole(key): value for key, value in case.get("options", {}).items()}
    written = overrides(version, options, engine=case.get("engine", "vllm"), **case.get("words", {}))
    return [*written, *map(whole, case.get("more", ()))]


def both_releases(cases):
    """A parameter for each case and release that has it."""
    return [
        pytest.param(name, case, version, id=f"{name}-{version}", marks=SECOND if version == "0.4.1" else ())
        for name, case in cases
        for version in ([case["only"]] if "only" in case else ["0.4.1", "0.9.1"])
    ]


@pytest.fixture(scope="session")
def composed(warm_verl, tmp_path_factory):
    """By version: every case, composed and validated in a Python with that verl."""
    folder = tmp_path_factory.mktemp("composed")

    @functools.cache
    def of(version):
        its = {name: case for name, case in CASES["composed"].items() if case.get("only", version) == version}
        cases = {name: asked(case, version) for name, case in its.items()}
        cases["on the node"] = [*overrides(version), *job_overrides(version, **CASES["job"]["given"])]
        values = (override(f"+values.v{index}", value) for index, value in enumerate(VALUES))
        cases["values"] = [*overrides(version), *values]
        return composed_by(version, cases, folder, warm_verl(version))

    return of


@pytest.mark.parametrize("version", RELEASES)
def test_values_arrive_as_they_were_given(version, composed):
    arrived = composed(version)["values"]["config"]["values"]
    for index, value in enumerate(VALUES):
        assert (arrived[f"v{index}"], type(arrived[f"v{index}"])) == (value, type(value))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("a b", 1, "is no key that Hydra can read"),
        ("a", float("nan"), "a must be a finite number"),
        ("a", {"b c": 1}, "a: 'b c' cannot be the key of a mapping"),
        ("a", [{"null": 1}], "a[0]: 'null' cannot be the key of a mapping"),
    ],
)
def test_what_hydra_cannot_be_told_is_refused(key, value, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        override(key, value)


@pytest.mark.parametrize(("name", "case", "version"), both_releases(CASES["composed"].items()))
def test_each_case_composes_to_what_was_meant_or_is_told_before_the_queue(name, case, version, composed):
    found = composed(version)[name]
    if "says" in case:
        assert case["says"] in (found["error"] or "no error") and "\n" not in found["error"]
        return
    assert found["error"] is None
    got, expected = flatten(found["config"]), {whole(key): value for key, value in case.get("has", {}).items()}
    assert {key: got.get(key, "missing") for key in expected} == expected


@pytest.mark.parametrize("version", RELEASES)
def test_the_jobs_own_settings_arrive(version, composed):
    assert composed(version)["on the node"]["error"] is None
    got = flatten(composed(version)["on the node"]["config"])
    reward = release_named(version).reward_key
    expected = {whole(key).replace("REWARD", reward): value for key, value in CASES["job"]["has"].items()}
    assert {key: got.get(key, "missing") for key in expected} == expected


@pytest.mark.parametrize(("name", "case", "version"), both_releases(enumerate(CASES["refused"])))
def test_what_verl_cannot_do_and_an_option_that_is_not_free_are_refused_in_the_plan(name, case, version):
    with pytest.raises(UserError, match=re.escape(case["says"])):
        asked(case, version)


@pytest.mark.parametrize("version", RELEASES)
def test_every_word_and_every_key_of_the_job_is_refused_as_an_option(version):
    owned = settings(Workload.model_validate(WORKLOAD), "vllm", 0, release_named(version), 1, False)
    for key in [*owned, *release_named(version).job_keys, *release_named(version).reserved_keys]:
        with pytest.raises(UserError, match="of an arm is not free"):
            overrides(version, {key.lstrip("+"): 1})
    for key, value in release_named(version).trl_defaults.items():
        other = not value if isinstance(value, bool) else [0.5, 0.5] if isinstance(value, list) else value + 1
        assert overrides(version, {key: other})[-1] == override(key, other)


def test_a_micro_batch_that_is_not_given_is_a_devices_share_of_the_mini_batch():
    for words, expected in (({}, 16), ({"mini_batch_size": 8}, 4), ({"nodes": 2}, 8), ({"gpus_per_node": 64}, 1)):
        written = overrides("0.4.1", **{"micro_batch_size": None, **words})
        assert f"{A}.ppo_micro_batch_size_per_gpu={expected}" in written


def test_seeds_and_arms_change_only_what_they_should():
    one, other = overrides("0.9.1", seed=1), overrides("0.9.1", seed=2)
    assert [a.partition("=")[0] for a, b in zip(one, other, strict=True) if a != b] == [
        *("data.seed", f"{A}.data_loader_seed", f"{R}.seed")
    ]
    vllm, sglang = overrides("0.4.1"), overrides("0.4.1", engine="sglang")
    assert [a for a, b in zip(vllm, sglang, strict=True) if a != b] == [f"{R}.name=vllm"]
