"""wandb's public API against a server on loopback: the whole history, patience, what is kept, and words for people."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest
from wandb_server import KEY, ServedRun, WandbServer

from analysis.sources import wandb_api
from analysis.sources.wandb_files import read_wandb_api
from common.errors import UserError
from tests.importing import ROOT

NAME = "me/p/a"
IMPATIENT = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from analysis.sources import wandb_api
wandb_api.PATIENCE |= dict(max=4, wait_min_seconds=0.05, wait_max_seconds=0.1)
sys.exit(wandb_api.main(*sys.argv[1:]))
"""
METADATA = {
    "host": "gpu1",
    "python": "CPython 3.11.7",
    "gpu_nvidia": [{"name": "NVIDIA H100 80GB HBM3", "memoryTotal": "85520809984"}] * 8,
    "git": {"remote": "https://u:t@host/x.git", "commit": "abc"},
}


def verl_rows(steps):
    rows = [{"_step": 0, "_timestamp": 1.7e9, "val-core/acc": 0.1}]
    for step in range(1, steps + 1):
        timers = {"timing_s/step": 3 + 1 / step, "timing_s/gen": 2.0}
        rows.append({"_step": step, "_timestamp": 1.7e9 + step, "training/global_step": step, **timers})
    rows[-1]["actor/grad_norm"] = "NaN"
    return rows


def served(steps=2300, **more):
    files = {"wandb-metadata.json": json.dumps(METADATA).encode(), "requirements.txt": b"verl==0.4.1\nvllm==0.8.5\n"}
    config = {"trainer": {"value": {"nnodes": 1, "hf_token": "hf_secret"}}, "_wandb": {"value": {"x": 1}}}
    return ServedRun(verl_rows(steps), config=config, files=files, **more)


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Points wandb's client at a server, as somebody without a home full of keys; short waits, and few."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(wandb_api, "module_command", lambda module: [sys.executable, "-c", IMPATIENT])
    (tmp_path / "home").mkdir()
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)

    def point(server, key=KEY):
        monkeypatch.setenv("WANDB_BASE_URL", server if isinstance(server, str) else server.url)
        if key is not None:
            monkeypatch.setenv("WANDB_API_KEY", key)

    return point


def pages(server):
    return [one.variables["minStep"] for one in server.asked if one.operation == "HistoryPage"]


def test_the_whole_history_once_and_privately(client, tmp_path, capfd):
    cache = tmp_path / "cache"
    with WandbServer({NAME: served(exported=1500)}) as server:
        client(server)
        found = read_wandb_api(NAME, cache)
        assert list(found.read.records) == list(range(1, 2301)), "not a sample, and no row lost where exports end"
        assert not found.read.verdicts
        assert server.keys, "the key was used"
        assert pages(server) == [1000, 2000], "up to the export, the exported file serves"
        asked = len(server.asked)
        again = read_wandb_api(NAME, cache)
        assert len(server.asked) == asked, "a finished run is never fetched again"
    record = found.read.records[2000]
    assert record.scalars["timing_s/step"] == 3 + 1 / 2000
    assert repr(again.read.records) == repr(found.read.records)
    assert json.loads(record.file.read_text().splitlines()[record.line - 1])["_step"] == 2000
    assert found.format == "wandb" and found.config == {"trainer": {"nnodes": 1, "hf_token": "[hidden]"}}
    assert found.versions == {"verl": "0.4.1", "vllm": "0.8.5", "python": "3.11.7"}
    assert len(found.hardware["gpus"]) == 8 and found.git == {"remote": "https://[hidden]@host/x.git", "commit": "abc"}
    assert found.finished - found.started == 3600
    kept = [path for path in cache.rglob("*") if path.is_file()]
    for path in kept:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert KEY not in path.read_text()
    for path in [cache, *(p for p in cache.rglob("*") if p.is_dir())]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    assert {path.name.split("-")[0] for path in kept} == {".lock", "run.json", "history.jsonl"}, (
        "nothing of wandb's is left"
    )
    assert not list((tmp_path / "home").rglob("*.parquet"))
    said = "".join(capfd.readouterr())
    assert "2301 of 2301 rows" in said and KEY not in said


def test_a_download_that_dies_leaves_nothing_that_is_taken_for_the_run(client, tmp_path):
    refused = {"on": True}

    def fault(asked, before):
        if asked.operation == "HistoryPage" and asked.variables["minStep"] >= 1000 and refused["on"]:
            return 0 if before % 2 else 500
        return None

    with WandbServer({NAME: served()}, fault) as server:
        client(server)
        with pytest.raises(UserError, match=r"gave no answer about run me/p/a \("):
            read_wandb_api(NAME, tmp_path / "cache")
        refused["on"] = False
        assert list(read_wandb_api(NAME, tmp_path / "cache").read.records) == list(range(1, 2301))


def test_too_many_questions_are_waited_out_and_a_download_before_is_not_mixed_in(client, tmp_path):
    folder = tmp_path / "cache" / "me" / "p" / "a"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"heartbeat_at": "earlier", "last_step": 3, "complete": False}))
    (folder / "history-000000000.jsonl").write_text('{"_step": 0, "stale": 1}\n')

    def fault(asked, before):
        return 429 if asked.operation == "HistoryPage" and before < 3 else None

    with WandbServer({NAME: served(20)}, fault) as server:
        client(server)
        assert list(read_wandb_api(NAME, tmp_path / "cache").read.records) == list(range(1, 21))
    assert sorted(file.name for file in folder.glob("history*")) == ["history.jsonl"]


@pytest.mark.parametrize(
    ("name", "key", "state", "status", "said"),
    [
        (NAME, None, "finished", None, "needs a key.*wandb login.*WANDB_API_KEY"),
        (NAME, KEY, "finished", 401, "does not accept the key.*wandb login"),
        (NAME, KEY, "running", None, "me/p/a is running.*Import it when it has ended"),
    ],
)
def test_errors_in_words(client, tmp_path, capfd, name, key, state, status, said):
    def fault(asked, before):
        return status if status == 401 or asked.operation != "Viewer" else None

    with WandbServer({NAME: served(3, state=state)}, fault) as server:
        client(server, key)
        with pytest.raises(UserError, match=said) as error:
            read_wandb_api(name, tmp_path / "cache")
    printed = "".join(capfd.readouterr())
    assert KEY not in str(error.value) + printed and "\n" not in str(error.value)
    # None of these passes: no waiting, and no advice for a machine without a network.
    assert "No network" not in str(error.value)


@pytest.mark.parametrize("name", ["p/a", "https://wandb.ai/me/p/runs/a", "me/p/../a"])
def test_a_name_that_is_none(tmp_path, name):
    with pytest.raises(UserError, match="entity/project/id"):
        read_wandb_api(name, tmp_path / "cache")
    assert not list(Path(tmp_path).iterdir())


def test_rows_that_wandb_counts_and_did_not_give_are_told(tmp_path):
    folder = tmp_path / NAME
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"complete": True, "rows": 3, "history_lines": 5}))
    (folder / "history-000000000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in verl_rows(2)))
    read = read_wandb_api(NAME, tmp_path).read
    (verdict,) = read.verdicts
    assert list(read.records) == [1, 2] and (verdict.level, verdict.code) == ("warning", "incomplete-history")
    assert "counts 5 rows of history and gave 3" in verdict.text and str(folder) in verdict.text
