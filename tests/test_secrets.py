"""Keys, tokens and passwords of logs, scripts and environments enter nothing that is written for others."""

import json
import os
import re
import time

import pandas as pd
import pytest
import yaml

from common.files import ROOT
from common.redaction import HIDDEN, is_secret_name, without_secrets
from tests.trainers.command.script_bench import FORMATS, ScriptBench

NAMES, ORDINARY = (
    (FORMATS.parent / "names" / f"{kind}.txt").read_text().partition("\n")[2].split() for kind in ("secret", "ordinary")
)
MARK = "Zq7xMark"  # in each secret value
DATA = yaml.safe_load((FORMATS.parent / "names" / "secrets.yaml").read_text(encoding="utf-8"))
SCRIPT = ROOT / "tests" / "launch_scripts" / "scripts" / "with-secrets.sh"
NUMBER = 7361950284


def custom(seed):
    """A section of a configuration: each secret name with values of every kind, and ordinary names."""
    return {
        **{name: f"{MARK}-{seed}-{at}" for at, name in enumerate(NAMES)},
        "numbers": dict.fromkeys(NAMES, NUMBER + seed),
        "lists": {name: [f"{MARK}-{seed}", NUMBER + seed] for name in NAMES},
        "texts": [f"{name}={MARK}" for name in NAMES] + [f"--{name} {MARK}" for name in NAMES],
        "known": DATA["settings"],
        "plain": DATA["settings_kept"],
        "ordinary": {name: f"Keep{seed}-{at}" for at, name in enumerate(ORDINARY)},
    }


def written(folder):
    """The text of all files in a folder, tables included; with what the file says as bytes."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path, path.read_bytes()
            if path.suffix == ".parquet":
                yield path, pd.read_parquet(path).to_csv().encode()


def test_a_compared_log_gives_its_secrets_to_nobody_and_its_other_settings_to_the_page(tmp_path, rolloutbench):
    lines = (FORMATS / "verl-console-vllm-0.log").read_text().splitlines(keepends=True)
    for seed, name in enumerate("ab"):
        config = {"actor_rollout_ref": {"rollout": {"name": "vllm", "n": 8}}, "trainer": {"nnodes": 1}}
        steps = "".join(line for line in lines if "step:" in line)
        (tmp_path / f"{name}.log").write_text(f"{config | {'custom': custom(seed)}}\n{steps}")
    said = rolloutbench("compare", "a=a.log", "b=b.log", "--report", "report", "--markdown")
    assert said.code == 0, said
    report = tmp_path / "report"
    for place, content in [("terminal", said.words.encode()), *written(report)]:
        for secret in (MARK, str(NUMBER), str(NUMBER + 1)):
            assert secret.encode() not in content, (place, content[max(0, content.find(secret.encode()) - 99) :][:200])
    settings = pd.read_csv(report / "tables" / "settings.csv").astype(str)
    shown = " ".join(settings.to_numpy().ravel())
    for at, name in enumerate(ORDINARY):
        assert f" Keep0-{at} " in shown and f" Keep1-{at} " in shown, f"{name} is no secret"
    plain = dict(settings.loc[settings.iloc[:, 0].str.contains(".plain.", regex=False)].iloc[:, [0, 1]].to_numpy())
    assert not [name for name, value in plain.items() if HIDDEN in value]
    assert len(plain) >= 10, plain


def test_the_command_of_a_log_gives_away_no_key_of_what_it_opens(tmp_path, rolloutbench):
    lines = (FORMATS / "verl-console-vllm-0.log").read_text().splitlines(keepends=True)
    steps = "".join(line for line in lines if "step:" in line)
    given = f"+data.storage_options.key={MARK} +trainer.access_code={MARK}a +trainer.pin={MARK} data.prompt_key=Keep"
    for name in "ab":
        command = (
            f"+ python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm trainer.nnodes=1 {given}{name}"
        )
        (tmp_path / f"{name}.log").write_text(f"verl==0.9.1\n{command}\n{steps}")
    said = rolloutbench("compare", "a=a.log", "b=b.log", "--report", "report")
    assert said.code == 0, said
    everywhere = [("terminal", said.words.encode()), *written(tmp_path / "report")]
    assert not [place for place, content in everywhere if MARK.encode() in content]
    assert b"Keepa" in b"".join(content for _, content in everywhere), "the column of prompts is a setting"


def test_a_launch_script_gives_its_secrets_to_no_file_and_no_terminal(tmp_path, rolloutbench, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = rolloutbench("new", "my.yaml", "--from", SCRIPT)
    assert said.code == 0, said
    files = dict(written(tmp_path))
    assert {path.name for path in files} == {"my.yaml", "config.yaml", "setup.sh"}
    for place, content in [("terminal", said.words.encode()), *files.items()]:
        assert MARK.encode() not in content, f"{place}: {content.decode()}"
    text = (tmp_path / "my.yaml").read_text()
    assert "TOKENIZERS_PARALLELISM" in text and "NCCL_DEBUG" in text
    assert "--export=ALL,WANDB_API_KEY=[hidden]" in said.words
    assert not [name for name in DATA["script"] if not re.search(rf"(, |: ){re.escape(name)}[,:]", said.words)], (
        said.out
    )


def test_what_a_script_prints_is_the_users_alone_and_what_is_told_of_it_has_no_secret(tmp_path):
    script = f"""#!/bin/bash
set -x
export WANDB_API_KEY={MARK}
cd "$(dirname "$0")"
curl -H "Authorization: Bearer {MARK}1" http://127.0.0.1:9/x?token={MARK} || true
python3 -m trainer.main > train.log
[ -e ok ] || exit 3
"""
    variables = {"VLLM_X_URL": f"https://h?api_key={MARK}", "VLLM_JWT": MARK, "TORCH_DSN": MARK, "VLLM_USE_V1": "1"}
    before = os.umask(0o002)
    try:
        one = ScriptBench(tmp_path, script, read=["train.log"], head_env=variables)
        failed = one.launch()
        assert failed.returncode == 1 and "exit code 3" in failed.stderr and "+ curl" in failed.stderr
        (tmp_path / "project" / "ok").touch()
        passed = one.launch()
        assert passed.returncode == 0, passed.stderr
    finally:
        os.umask(before)
        one.end()
    assert MARK not in failed.stderr + failed.stdout + passed.stderr
    private = {path for path, content in written(one.run) if MARK.encode() in content}
    names = {path.name for path in private}
    assert {"console.log", "run.sh"} <= names and {path.suffix for path in private} <= {".log", ".sh", ""}, names
    logs = {path for path in one.run.rglob("read/**/*.log")}
    assert logs and {oct(path.stat().st_mode & 0o777) for path in private | logs} == {"0o600"}
    environment = one.done()["resolved"]["environment"]
    assert environment["VLLM_USE_V1"] == "1" and not {*variables} - {"VLLM_USE_V1"} & {*environment}


def test_names_of_trainers_settings_are_known_for_what_they_are():
    assert not [name for name in ORDINARY if is_secret_name(name)]
    assert not [name for name in NAMES if not is_secret_name(name)]
    for name in ORDINARY:
        text = f"{name}=Keep --{name} Keep {{'{name}': 'Keep', \"{name}\": \"Keep\"}} {name}: Keep"
        assert without_secrets(text) == text
        assert without_secrets({name: 4096, "a": [{name: "Keep"}]}) == {name: 4096, "a": [{name: "Keep"}]}


@pytest.mark.parametrize("form", DATA["forms"])
def test_a_secret_is_hidden_in_every_form_of_a_text(form):
    for name in NAMES:
        text = form.replace("<name>", name)
        shown = without_secrets(text)
        assert MARK not in shown and HIDDEN in shown, (text, shown)
        assert without_secrets(shown) == shown, "once is enough"
        assert ("next" in text) == ("next" in shown) and ("OTHER=1" in text) == ("OTHER=1" in shown)


@pytest.mark.parametrize("text", DATA["texts"])
def test_a_secret_is_hidden_where_a_tool_is_given_it(text):
    shown = without_secrets(text)
    assert MARK not in shown and HIDDEN in shown, (text, shown)
    assert without_secrets(shown) == shown, "once is enough"
    assert shown.count("Keep") == text.count("Keep"), (text, shown)


def test_texts_that_only_sound_like_secrets_stay():
    for text in DATA["kept"]:
        assert without_secrets(text) == text


@pytest.mark.parametrize("piece", DATA["repeated"])
def test_a_long_text_costs_no_time(piece):
    """A quarter of a megabyte in one line takes about 0.05 s here; what grows faster than the text takes far longer."""
    began = time.process_time()
    without_secrets(piece * (250_000 // len(piece)))
    assert time.process_time() - began < 1.25


@pytest.mark.parametrize("filler", [" ", "x", "-a ", ";", "'", "/a"])
def test_a_long_end_costs_no_time(filler):
    began = time.process_time()
    for end in DATA["ends"]:
        without_secrets(f"{end} {filler * (50_000 // len(filler))}!")
    assert time.process_time() - began < 2.5


def test_settings_keep_their_kinds():
    settings = {"a": 1, "b": [1.5, None, True], "use_auth_token": True, "api_key": None, "hub_token": "<HUB_TOKEN>"}
    assert without_secrets(settings) == settings == json.loads(json.dumps(settings))
