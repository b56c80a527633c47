"""The configuration: what is accepted, and what each mistake is told."""

import copy
from pathlib import Path
from typing import get_args

import pytest
import yaml

from common.errors import UserError
from common.published import check_published
from node.built_in_rewards import BUILT_IN
from trainers.reward_settings import Reward
from workflow.cli import main
from workflow.config.model import Config
from workflow.config.plan import load_plan
from workflow.config.reading import NO_LONGER_USED, parse_config, parse_overrides, read_yaml

from .two_arms import two_arms


@pytest.fixture
def raw():
    """The default configuration as YAML gives it."""
    return two_arms()


def changed(raw, path, value):
    """A copy with one dotted path set."""
    result = copy.deepcopy(raw)
    at = result
    *way, last = path.split(".")
    for key in way:
        at = at[key]
    at[last] = value
    return result


OLD_KEYS = {"explain": {"vllm": ["a", "b"]}, "cpu_memory_gb_s": 25.0}


def test_a_key_that_is_no_longer_used_is_named_once_and_ignored(raw, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("new.yaml").write_text(yaml.safe_dump(raw))
    Path("old.yaml").write_text(yaml.safe_dump(raw | {"report": OLD_KEYS | {"to_steps": 9}}))
    assert main(["status", "new.yaml"]) == 0
    new = capsys.readouterr()
    assert main(["status", "old.yaml"]) == 0
    old = capsys.readouterr()
    assert new.out.replace("new.yaml", "old.yaml") == old.out and "no longer used" not in new.err
    assert [line for line in old.err.splitlines() if "no longer used" in line] == [
        f"report.{key} is no longer used: {NO_LONGER_USED[f'report.{key}']}" for key in OLD_KEYS
    ]
    plans = [load_plan(read_yaml(Path(name))) for name in ("new.yaml", "old.yaml")]
    assert [run.fingerprint for run in plans[0].runs.values()] == [run.fingerprint for run in plans[1].runs.values()]
    left = {"price_per_gpu_hour": None, "currency": "USD", "to_steps": 9}
    assert plans[1].config.report.as_json().items() >= left.items()


def test_every_field_is_documented():
    schema = Config.model_json_schema()
    for section in [schema, *schema["$defs"].values()]:
        for name, field in section.get("properties", {}).items():
            assert field.get("description"), f"{name} has no docstring"


@pytest.mark.parametrize(
    "name",
    [
        *("hub_token", "HF_TOKEN", "api_token", "access_token", "auth_token", "token", "bearer", "api_key", "apiKey"),
        *("access_key", "aws_access_key_id", "wandb_key", "client_secret", "password", "passwd", "passphrase"),
        *("credentials", "auth", "basic_auth", "authorization", "push_to_hub_token"),
    ],
)
def test_an_option_that_looks_like_a_secret_is_refused_and_its_value_not_shown(raw, name):
    for wrong in (
        changed(raw, "arms.vllm.options", {name: "s3cr3t"}),
        changed(raw, "arms.vllm.options", {"model_init_kwargs": {name: "s3cr3t"}}),
        changed(raw, "sweep", {f"arms.vllm.options.{name}": ["s3cr3t"]}),
        changed(raw, "sweep", {"arms.vllm.options.model_init_kwargs": [{name: "s3cr3t"}]}),
    ):
        with pytest.raises(UserError) as caught:
            load_plan(wrong)
        assert f"{name} looks like a secret" in str(caught.value)
        assert "export it in the shell" in str(caught.value)
        assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        *("max_tokens", "pad_token", "eos_token_id", "vllm_max_num_batched_tokens", "tokenizer_mode", "author"),
        *("token_level_loss", "keyword", "skip_special_tokens", "monkey", "tokens", "bypass", "hub_tokenizer"),
    ],
)
def test_an_innocent_option_is_not_called_a_secret(raw, name):
    options = {name: "http://host:8080/a@b", "git": "ssh://git@host/x"}
    assert parse_config(changed(raw, "arms.vllm.options", options)).arms["vllm"].options == options


def test_jobs_and_controller_agree_on_rewards():
    assert set(BUILT_IN) == set(get_args(Reward.model_fields["name"].annotation))


def test_overrides_are_read_as_yaml():
    assert parse_overrides({"a": "1", "b": ["true", "'@x: y'"], "c": "", "d": 3}) == {
        "a": 1,
        "b": [True, "@x: y"],
        "c": "",
        "d": 3,
    }


def test_equal_keys_of_different_mappings_are_fine(tmp_path):
    file = tmp_path / "fine.yaml"
    file.write_text("a: &a {x: 1}\nb: {<<: *a, x: 2}\nc: [*a, *a, &r [*r]]\n1: 2\n'1': 3\n")
    assert read_yaml(file)["b"] == {"x": 2}


def test_column_names_of_verl_are_no_secrets():
    check_published({"data": {"prompt_key": "prompt"}})
    with pytest.raises(ValueError, match="looks like a secret"):
        check_published({"data": {"hub_key": "x"}})
