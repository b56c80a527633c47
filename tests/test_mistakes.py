"""One row a mistake on the command line: what is typed, where, and what is said of it (mistakes.yaml)."""

import shlex
from pathlib import Path

import pytest
import yaml

from .importing import ROOT

ROWS = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text())


def write(name, content):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    if content is None:
        Path(name).mkdir()
    elif isinstance(content, bytes):
        Path(name).write_bytes(content)
    elif content.startswith("-> "):
        Path(name).symlink_to(content.removeprefix("-> "))
    else:
        Path(name).write_text(content)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["typed"])
def test_a_mistake(row, rolloutbench, tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    for name, content in row.get("files", {}).items():
        write(name, content)
    before = sorted(tmp_path.rglob("*"))
    places = {"FOLDER": str(tmp_path), "ROOT": str(ROOT), "LONG": "x" * 300}
    typed, says = row["typed"], row["says"]
    for place, text in places.items():
        typed, says = typed.replace(place, text), says.replace(place, text)
    said = rolloutbench(*shlex.split(typed))
    told = " ".join(said.err.split())
    assert said.code == row.get("code", 1) and says in told, said
    assert (typed.startswith("run") or not said.out) and len(said.err.splitlines()) <= 3, said
    assert not typed.startswith("compare") or "configuration has errors" not in told, said
    assert [file for file in sorted(tmp_path.rglob("*")) if ".wandb-cache" not in file.parts] == before
