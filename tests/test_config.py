"""The configuration: what is accepted, and what each mistake is told."""

import copy
from pathlib import Path
from typing import get_args

import pytest
import yaml

from common.dotted import nested_settings
from common.errors import UserError
from common.published import check_published
from node import hardware as node
from node.built_in_rewards import BUILT_IN
from node.hub import source_kind
from trainers.reward_settings import Reward
from workflow.cli import main
from workflow.config.model import Config
from workflow.config.plan import load_plan
from workflow.config.reading import NO_LONGER_USED, parse_config, parse_overrides, read_yaml

from .two_arms import two_arms

NESTED = []
NESTED.append(NESTED)  # as YAML's `&a [*a]`


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


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("workload.steps", "ten", "workload.steps: must be a whole number (got 'ten')"),
        ("workload.batch_size", 30, "multiple of num_generations (got 30 and 8; try 32)"),
        (
            "workload.rewards",
            [{"name": "acuracy"}],
            "workload.rewards.0.name: must be 'accuracy', 'format', 'length', 'phi4', 'cosine'",
        ),
        ("workload.num_generations", 1, "workload.num_generations must be at least 2 with trainer trl"),
        ("arms.vllm.stack", "trl-transformers-cpu", "is built for trainer trl with engine transformers"),
        ("arms.vllm.env", {"WANDB_API_KEY": "x"}, "WANDB_API_KEY looks like a secret"),
        ("arms.vllm.options", {"temperature": 2.0}, "options.temperature of an arm is not free"),
        ("seeds", [1, 1], "seeds must differ"),
        ("seeds", ["a"], "seeds"),
        ("arms.again", two_arms()["arms"]["transformers"], "arms transformers and again are identical"),
        ("sweep", {"workload.temprature": [1]}, "has no 'temprature' (did you mean temperature?)"),
        ("sweep", {"workload.temperature": [1, "hot"]}, "sweep with {'workload.temperature': 'hot'}"),
        ("sweep", {"arms.vllm.engine": ["vllm"]}, "arms.<arm>.options.<setting>"),
        ("workload.data.source", "openai/gsm8k", "needs a revision"),
        ("experiment", "../elsewhere", "experiment may contain letters"),
        ("description", "x" * 5001, "description: must have at most 5000 characters (got 5001)"),
        ("arms.vllm.env", {"A": 1}, "arms.vllm.env.A: must be text (got 1); quote it"),
        ("arms.vllm.env", {"1A": "x"}, "must be letters, digits and '_', and not begin with a digit (got '1A')"),
        ("arms.vllm.env", {"A": "x\0y"}, "A: must not contain a NUL character"),
        ("arms.vllm.options", {"index": "https://me:pw@host/x"}, "index contains what looks like a secret"),
        ("arms.vllm.options", {"a": {"b": [{"api_key": "x"}]}}, "a.b[0].api_key looks like a secret"),
        ("arms.vllm.options", {"a": [float("nan")]}, "a[0]: must be a finite number"),
        ("arms.vllm.options", {"a": NESTED}, "nested more than 20 levels deep"),
        ("workload.temperature", True, "workload.temperature: must be a number (got true)"),
        ("workload.rewards", [{"name": "format", "options": {"target": 3}}], "has no option 'target'; it has: none"),
        ("warmup_steps", 12, "warmup_steps must be less than workload.steps"),
        ("seeds", [2**32], "seeds.0: must be less than or equal to 4294967295"),
    ],
)
def test_a_mistake_is_told_in_one_message(raw, path, value, says):
    with pytest.raises(UserError) as caught:
        load_plan(changed(raw, path, value))
    assert says in str(caught.value) and str(caught.value).count("\n  - ") <= 1


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


def test_all_mistakes_are_listed_at_once(raw):
    wrong = changed(changed(raw, "workload.steps", "x"), "basline", 1)
    with pytest.raises(UserError) as caught:
        parse_config(wrong)
    assert "workload.steps" in str(caught.value)
    assert "basline" in str(caught.value)


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
    "where",
    [
        *("description", "workload.data.system_prompt", "workload.data.answer_after", "workload.model.source"),
        *("arms.vllm.import", "arms.vllm.import.version", "arms.vllm.stack"),
    ],
)
def test_no_text_that_is_published_may_have_a_secret(raw, where):
    with pytest.raises(UserError) as caught:
        raw["arms"]["vllm"] |= {"import": {"runs": ["a.log"]}} if "import" in where else {}
        load_plan(changed(raw, where, "curl -u me:s3cr3t https://h WANDB_API_KEY=s3cr3t"))
    assert "looks like a secret" in str(caught.value) and "s3cr3t" not in str(caught.value)


def test_a_refused_value_is_not_shown_if_its_name_is_a_secrets(raw):
    reward = {"name": "length", "options": {"judge_key": "s3cr3t"}}
    for wrong in (changed(raw, "workload.rewards", [reward]), changed(raw, "workload.rewards", reward)):
        with pytest.raises(UserError) as caught:
            load_plan(wrong)
        assert "[hidden]" in str(caught.value) and "s3cr3t" not in str(caught.value)


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
    assert node.reported_environment({"VLLM_PROXY": "http://me:pw@host", "VLLM_HOST": "http://host:1"}) == {
        "VLLM_HOST": "http://host:1"
    }


SOURCES = (
    *("org/data", "data", "x.jsonl", "org/x.jsonl", "org/x.json", "x.parquet", "x.csv", "org/x.csv", "x.JSONL"),
    *("./x", "../x", ".x", "~/x", "~me/x", "/x", "a/b/c", "org/mod", "org/mod/", ".jsonl", "x.jsonl.gz", "mod"),
)


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_is_told_by_how_it_is_written(source, tmp_path, monkeypatch):
    told = source_kind(source)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "mod").mkdir(parents=True)
    (tmp_path / "mod").mkdir()
    assert source_kind(source) == told, "a folder of that name takes no hub id's place"


def test_overrides_are_read_as_yaml():
    assert parse_overrides({"a": "1", "b": ["true", "'@x: y'"], "c": "", "d": 3}) == {
        "a": 1,
        "b": [True, "@x: y"],
        "c": "",
        "d": 3,
    }


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a: 1\nseeds: [0]\nb: 2\nseeds: [1]\n", "the key 'seeds' is given twice, in lines 2 and 4"),
        (b"experiment: \xff\xfe\n", "is not UTF-8 text (byte 12 is 0xff)"),
        (b"a: [1\n", "wrong.yaml is not YAML: while parsing a flow sequence, expected ',' or ']'"),
        (b"a: " + b"[" * 5000, "nested too deeply"),
        (b"", "must be a mapping of keys to values (got nothing)"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_message(content, says, tmp_path, capsys):
    file = tmp_path / "wrong.yaml"
    file.write_bytes(content)
    assert main(["check", str(file)]) == 1
    said = capsys.readouterr().err
    assert says in said
    assert "wrong.yaml" in said


def test_equal_keys_of_different_mappings_are_fine(tmp_path):
    file = tmp_path / "fine.yaml"
    file.write_text("a: &a {x: 1}\nb: {<<: *a, x: 2}\nc: [*a, *a, &r [*r]]\n1: 2\n'1': 3\n")
    assert read_yaml(file)["b"] == {"x": 2}


def test_dotted_settings_are_nested_ones():
    assert nested_settings({"a.b": 1, "a": {"c.d": 2}, "+a.e": 3}) == {"a": {"b": 1, "c": {"d": 2}}, "+a": {"e": 3}}


@pytest.mark.parametrize("options", [{"a.b": 1, "a": {"b": 1}}, {"a": 1, "a.b": 2}, {"a..b": 1}, {".a": 1}, {"a.": 1}])
def test_a_setting_that_is_given_twice_or_has_no_name_is_refused(options):
    with pytest.raises(ValueError, match=r"given twice|a key must not"):
        nested_settings(options)


def test_column_names_of_verl_are_no_secrets():
    check_published({"data": {"prompt_key": "prompt"}})
    with pytest.raises(ValueError, match="looks like a secret"):
        check_published({"data": {"hub_key": "x"}})
