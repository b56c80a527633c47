"""Keys, tokens and passwords of logs, scripts and environments enter nothing that is written for others."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from common.redaction import HIDDEN, is_secret_name, without_secrets
from tests.trainers.command.script_bench import FORMATS, ScriptBench

PROGRAM = Path(sys.executable).with_name("rolloutbench")
NAMES, ORDINARY = (
    (FORMATS.parent / "names" / f"{kind}.txt").read_text().partition("\n")[2].split() for kind in ("secret", "ordinary")
)
MARK = "Zq7xMark"  # in each secret value
# Values whose name says nothing.
KNOWN = {
    "a": f"sk-{MARK}0123456789abcdefgh",
    "b": f"hf_{MARK}0123456789abcdefghijklmnop",
    "c": f"ghp_{MARK}0123456789abcdefghijklmnop",
    "d": f"github_pat_{MARK}0123456789abcdefghijklmnop",
    "e": f"glpat-{MARK}0123456789abcdef",
    "f": f"xoxb-{MARK}-0123456789",
    "g": f"xapp-1-{MARK}-0123456789",
    "h": f"npm_{MARK}0123456789abcdefghijklmnop",
    "i": f"pypi-{MARK}0123456789abcdefghijklmnop",
    "j": f"nvapi-{MARK}0123456789abcdef",
    "k": f"gsk_{MARK}0123456789abcdef",
    "l": f"AIza{MARK}0123456789abcdefghijklmnop",
    "m": f"eyJhbGciOiJI.{MARK}0123456789.abcdefghijk",
    "n": f"-----BEGIN RSA PRIVATE KEY-----\n{MARK}\n-----END RSA PRIVATE KEY-----",
    "o": f"https://{MARK}@host/x",
    "p": f"https://me:{MARK}@host/x",
    "q": f"https://host/v1?model=m&api_key={MARK}&n=1",
    "r": f"https://host/v1?key={MARK}",
    "s": f"curl -H 'Authorization: Bearer {MARK}1' -H 'X-Api-Key: {MARK}'",
    "t": f"Basic {MARK}==",
    "u": f"serve --api-key {MARK} --port 1",
    "v": f"serve --token={MARK} --port 1",
    "w": ["--port", "1", "--api_key", MARK],
    "x": [f"--token={MARK}"],
    "y": ["api_key", MARK],
    "z": [{"name": "API_KEY", "value": MARK}],
    "openai": {"key": MARK},
    "secrets": {"any": MARK, "deep": {"er": [MARK]}},
    "text": f"{{'wandb_key': '{MARK}', \"api_key\": \"{MARK}\", 'secrets': {{'a': '{MARK}'}}}}",
    "proxy": f"me:{MARK}@proxy:3128",
    f"https://{MARK}@host": 1,
}
NUMBER = 7361950284


def custom(seed):
    """A section of a configuration: each secret name with values of every kind, and ordinary names."""
    return {
        **{name: f"{MARK}-{seed}-{at}" for at, name in enumerate(NAMES)},
        "numbers": dict.fromkeys(NAMES, NUMBER + seed),
        "lists": {name: [f"{MARK}-{seed}", NUMBER + seed] for name in NAMES},
        "texts": [f"{name}={MARK}" for name in NAMES] + [f"--{name} {MARK}" for name in NAMES],
        "known": KNOWN,
        "ordinary": {name: f"Keep{seed}-{at}" for at, name in enumerate(ORDINARY)},
    }


def written(folder):
    """The text of all files in a folder, tables included; with what the file says as bytes."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path, path.read_bytes()
            if path.suffix == ".parquet":
                yield path, pd.read_parquet(path).to_csv().encode()


def test_a_compared_log_gives_its_secrets_to_nobody_and_its_other_settings_to_the_page(tmp_path):
    lines = (FORMATS / "verl-console-vllm-0.log").read_text().splitlines(keepends=True)
    for seed, name in enumerate("ab"):
        config = {"actor_rollout_ref": {"rollout": {"name": "vllm", "n": 8}}, "trainer": {"nnodes": 1}}
        steps = "".join(line for line in lines if "step:" in line)
        (tmp_path / f"{name}.log").write_text(f"{config | {'custom': custom(seed)}}\n{steps}")
    command = [PROGRAM, "compare", "a=a.log", "b=b.log", "--report", "report", "--markdown"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=300, check=True)
    report = tmp_path / "report"
    for place, content in [("terminal", done.stdout + done.stderr), *written(report)]:
        for secret in (MARK, str(NUMBER), str(NUMBER + 1)):
            assert secret.encode() not in content, (place, content[max(0, content.find(secret.encode()) - 99) :][:200])
    settings = pd.read_csv(report / "tables" / "settings.csv").astype(str)
    shown = " ".join(settings.to_numpy().ravel())
    for at, name in enumerate(ORDINARY):
        assert f'"Keep0-{at}"' in shown and f'"Keep1-{at}"' in shown, f"{name} is no secret"


SCRIPT = f"""#!/bin/bash
#SBATCH --partition=p --export=ALL,WANDB_API_KEY={MARK} --time=60
export JUDGE_PWD={MARK} SLACK_WEBHOOK=https://hooks.invalid/{MARK} COOKIE={MARK} JWT={MARK} HF_TOKEN={MARK}
export HTTPS_PROXY=http://{MARK}@proxy:3128 JUDGE_URL="https://h/v1?api_key={MARK}" TOKENIZERS_PARALLELISM=true
export NCCL_DEBUG=WARN JUDGE_ARGS="--token {MARK}"
wandb login {MARK}
source login.sh --password {MARK}
curl -u me:{MARK} https://h
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=d.parquet data.prompt_key=question \\
  actor_rollout_ref.model.path=/m actor_rollout_ref.rollout.name=vllm +reward.judge_pass={MARK} \\
  +reward.url=https://h/v1?api_key={MARK} +trainer.huggingface_token={MARK} +trainer.cookie={MARK} \\
  +reward.args="'--token {MARK}'" +reward.kwargs="{{api_key: {MARK}}}" \\
  +reward.headers="'Authorization: Bearer {MARK}1'" \\
  +reward.note=sk-{MARK}0123456789abcdefgh
"""


def test_a_launch_script_gives_its_secrets_to_no_file_and_no_terminal(tmp_path):
    (tmp_path / "run.sh").write_text(SCRIPT)
    command = [PROGRAM, "new", "my.yaml", "--from", "run.sh"]
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=True)
    for place, content in [("terminal", (done.stdout + done.stderr).encode()), *written(tmp_path)]:
        assert MARK.encode() not in content or place == tmp_path / "run.sh", f"{place}: {content.decode()}"
    text = (tmp_path / "my.yaml").read_text()
    assert "TOKENIZERS_PARALLELISM" in text and "NCCL_DEBUG" in text
    for name in ("JUDGE_PWD", "COOKIE", "JWT", "HTTPS_PROXY", "+reward.judge_pass", "+reward.kwargs"):
        assert f"{name}: looks like a secret" in done.stdout or f"{name}, " in done.stdout, done.stdout


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


FORMS = (
    *(
        "{n}={v}",
        "--{n} {v}",
        "--{n}={v}",
        "{n}: {v}",
        "{{'{n}': '{v}'}}",
        '{{"{n}":"{v}"}}',
        '{{\\"{n}\\": \\"{v}\\"}}',
    ),
    *(
        "+ export {n}={v}",
        "{n}='{v}' next",
        '{n}="{v} {v}" next',
        "https://h/?a=1&{n}={v}",
        "os.environ['{n}'] = '{v}'",
    ),
    *("-H '{n}: {v}'", "{n}=a\"{v}\"'{v}' next", "{n} = {v}", "{n}={v},OTHER=1", "{n}={{'a': '{v}'}}", "a.{n}={v}"),
)


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_hidden_in_every_form_of_a_text(form):
    for name in NAMES:
        text = form.format(n=name, v=MARK)
        shown = without_secrets(text)
        assert MARK not in shown and HIDDEN in shown, (text, shown)
        assert without_secrets(shown) == shown, "once is enough"
        assert ("next" in text) == ("next" in shown) and ("OTHER=1" in text) == ("OTHER=1" in shown)


def test_texts_that_only_sound_like_secrets_stay():
    for text in (
        *("HF_TOKEN: looks like a secret", "Basic training of a model", "token=$HF_TOKEN", "api_key: null"),
        *(
            "use_auth=true",
            "ssh://git@host/x.git",
            "docker://image@sha256:0123",
            "commit 0123456789abcdef0123456789abcdef",
        ),
        *("tokens: 5", "hf://datasets/org/name@main/x.parquet", "pass@8: 0.5", "--user 1000:1000", "the key is wrong"),
    ):
        assert without_secrets(text) == text


PIECES = (
    *("a=b ", "x", "://", "token=", "token={", "token='", 'token="', "a:", "-----BEGIN PRIVATE KEY-----", "Bearer "),
    *("-u ", "a.", "key:", "token=[{", "login --a ", "token=,", "a:b@", "?key=", '\\"token\\":', "- -"),
)


@pytest.mark.parametrize("piece", PIECES)
def test_a_long_text_costs_no_time(piece):
    began = time.process_time()
    without_secrets(piece * (200_000 // len(piece)))
    assert time.process_time() - began < 5


def test_settings_keep_their_kinds():
    settings = {"a": 1, "b": [1.5, None, True], "use_auth_token": True, "api_key": None, "hub_token": "<HUB_TOKEN>"}
    assert without_secrets(settings) == settings == json.loads(json.dumps(settings))
