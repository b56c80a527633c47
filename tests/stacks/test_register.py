"""An interpreter that is there becomes a stack: compared with the lock, laid over, verified, and never changed."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from workflow.stacks.definition import site_folders
from workflow.stacks.uv import find_uv
from workflow.stacks.verification import require_verified

from .conftest import Index, Site, interpreter, write_wheel

pytestmark = pytest.mark.full("stacks over interpreters that are there")


def contents(folder: Path) -> dict[str, str]:
    """Every file of a folder with its hash, and every link."""
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def registered(site: Site, python: Path, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    arguments = ["--python", str(python), "--stacks-dir", str(site.stacks), *options]
    return site.run("register", "tiny", *arguments, **environ)


def verdict(site: Site) -> dict[str, Any]:
    (folder,) = site.built()
    told: dict[str, Any] = json.loads((folder / "verify.json").read_text())
    return told


def change_checks(site: Site) -> None:
    with (site.envs / "tiny" / "verify.py").open("a") as program:
        program.write("# another text\n")


def said_by(site: Site, *command: str) -> str:
    (folder,) = site.built()
    return subprocess.check_output([folder / "env" / "bin" / command[0], *command[1:]], text=True).strip()


@pytest.fixture
def wheels(tmp_path: Path) -> dict[str, Path]:
    """What the tiny stack's lock names, and what it does not."""
    named = [("rbt-alpha", "1.0"), ("rbt-beta", "2.0"), ("rbt-beta", "2.1"), ("rbt-gamma", "7")]
    folder = tmp_path / "there"
    return {f"{name}=={version}": write_wheel(folder, name, version, script=True) for name, version in named}


def test_what_is_missing_is_laid_over_it(tiny: Site, tmp_path: Path, wheels: dict[str, Path]) -> None:
    python = interpreter(tmp_path / "base", wheels["rbt-beta==2.0"])
    before = contents(tmp_path / "base")
    done = registered(tiny, python)
    assert done.returncode == 0, done.stderr
    assert "has 1 of 2 packages; installing 1 on top of it" in done.stderr
    told = verdict(tiny)
    assert told["ok"] and told["state"] == "registered, not built"
    assert told["packages"] == {"rbt-alpha": "1.0", "rbt-beta": "2.0"}
    assert told["origin"] == {
        "state": "registered, not built",
        "python": str(python),
        "accepted": {},
        "differences": {},
        "laid_over": {"rbt-alpha": "1.0"},
    }
    # Both packages are importable, and the programs of both run with this environment's Python.
    assert said_by(tiny, "python", "-I", "-c", "import rbt_alpha, rbt_beta; print(rbt_beta.answer())") == "2.0"
    assert said_by(tiny, "rbt-alpha") == "1.0" and said_by(tiny, "rbt-beta") == "2.0"
    (folder,) = tiny.built()
    assert [path.parents[2].name for path in site_folders(folder / "env")] == ["env", "base"]
    assert contents(tmp_path / "base") == before
    # The rest of the workflow finds it like any other, and does not build it.
    assert tiny.build().stderr == ""
    assert registered(tiny, python).stderr == ""


def test_each_difference_is_listed_and_refused(tiny: Site, tmp_path: Path, wheels: dict[str, Path]) -> None:
    python = interpreter(tmp_path / "base", wheels["rbt-beta==2.1"], wheels["rbt-gamma==7"])
    refused = registered(tiny, python)
    assert refused.returncode == 1 and "Traceback" not in refused.stderr
    assert "  rbt-beta: the lock has 2.0, installed is 2.1\n" in refused.stderr
    assert "  1 packages that the lock does not have: rbt-gamma 7\n" in refused.stderr
    assert '--accept "rbt-beta==2.1 :extra:"' in refused.stderr and '--overlay "rbt-beta"' in refused.stderr
    assert tiny.built() == []
    # Another version than the one that is there accepts nothing.
    refused = registered(tiny, python, "--accept", "rbt-beta==2.2, rbt-gamma")
    assert refused.returncode == 1 and "rbt-beta: the lock has 2.0, installed is 2.1" in refused.stderr
    assert "rbt-gamma" not in refused.stderr


def test_what_is_accepted_by_name_stays_and_is_recorded(tiny: Site, tmp_path: Path, wheels: dict[str, Path]) -> None:
    python = interpreter(tmp_path / "base", wheels["rbt-beta==2.1"], wheels["rbt-gamma==7"])
    done = registered(tiny, python, "--accept", "rbt_Beta==2.1", "--accept", ":extra:")
    assert done.returncode == 0, done.stderr
    told = verdict(tiny)
    assert told["origin"]["accepted"] == {"rbt-beta": "2.1", "rbt-gamma": "7"}
    assert told["origin"]["differences"] == {"rbt-beta": "2.0", "rbt-gamma": "not installed"}
    accepted = {check["name"]: (check["expected"], check["got"]) for check in told["checks"] if check.get("accepted")}
    assert accepted == {"rbt-beta": ("2.0", "2.1"), "rbt-gamma": ("not installed", "7")}
    assert said_by(tiny, "python", "-I", "-c", "import rbt_beta; print(rbt_beta.answer())") == "2.1"


def test_the_locks_version_is_laid_over_another(tiny: Site, tmp_path: Path, wheels: dict[str, Path]) -> None:
    python = interpreter(tmp_path / "base", wheels["rbt-beta==2.1"])
    done = registered(tiny, python, "--overlay", ":all:")
    assert done.returncode == 0, done.stderr
    assert verdict(tiny)["packages"]["rbt-beta"] == "2.0"
    assert said_by(tiny, "python", "-I", "-c", "import rbt_beta; print(rbt_beta.answer())") == "2.0"
    code = "import rbt_beta; print(rbt_beta.answer())"
    assert subprocess.check_output([python, "-I", "-c", code], text=True).strip() == "2.1"


def test_another_build_of_the_locks_version_is_accepted_and_not_laid_over(
    tiny: Site, tmp_path: Path, wheels: dict[str, Path]
) -> None:
    """A wheelhouse made with --have brings no wheel for it."""
    local = write_wheel(tmp_path / "there", "rbt-beta", "2.0+cu130", script=True)
    python = interpreter(tmp_path / "base", local, wheels["rbt-alpha==1.0"])
    house = tmp_path / "house"
    house.mkdir()
    over = ("--overlay", ":all:", "--find-links", str(house))
    refused = registered(tiny, python, *over)
    assert refused.returncode == 1 and "  rbt-beta: the lock has 2.0, installed is 2.0+cu130\n" in refused.stderr
    assert '--accept "rbt-beta==2.0+cu130"' in refused.stderr and tiny.built() == []
    done = registered(tiny, python, *over, "--accept", "rbt-beta==2.0+cu130")
    assert done.returncode == 0, done.stderr
    assert verdict(tiny)["origin"]["accepted"] == {"rbt-beta": "2.0+cu130"}


def test_a_change_below_it_fails_the_next_check(tiny: Site, tmp_path: Path, wheels: dict[str, Path]) -> None:
    python = interpreter(tmp_path / "base", wheels["rbt-beta==2.1"])
    assert registered(tiny, python, "--accept", "rbt-beta").returncode == 0
    (folder,) = tiny.built()
    program, out = tiny.envs / "tiny" / "verify.py", tmp_path / "node.json"
    # As the training job checks it on the node: with what verify.json records, and nothing else.
    on_node = [folder / "env" / "bin" / "python", "-I", program, "--out", out]
    assert subprocess.run(on_node, check=False).returncode == 0
    install = [find_uv(), "pip", "install", "-q", "--no-index", "--no-deps", "--python", python]
    subprocess.run([*install, wheels["rbt-beta==2.0"], wheels["rbt-gamma==7"]], check=True)
    assert subprocess.run(on_node, check=False).returncode == 1
    failed = [check["name"] for check in json.loads(out.read_text())["checks"] if not check["ok"]]
    assert failed == ["rbt-gamma"]  # 2.0 is what the lock says
    with program.open("a") as text:
        text.write("# another text\n")
    # `build` does not put another environment in the place of the one that was chosen.
    refused = tiny.build()
    assert refused.returncode == 1 and "register it again" in refused.stderr
    assert (folder / "verify.json").exists()
    assert registered(tiny, python, "--accept", ":extra:").returncode == 0
    assert verdict(tiny)["origin"]["accepted"] == {"rbt-gamma": "7"}


def test_a_wheelhouse_alone_and_what_it_lacks(tiny: Site, index: Index, tmp_path: Path) -> None:
    python = interpreter(tmp_path / "base")
    house = tmp_path / "house"
    house.mkdir()
    (house / "rbt_alpha-1.0-py3-none-any.whl").write_bytes(
        (tmp_path / "wheels" / "rbt_alpha-1.0-py3-none-any.whl").read_bytes()
    )
    index.asked.clear()
    refused = registered(tiny, python, "--find-links", str(house))
    assert refused.returncode == 1 and "rbt-beta" in refused.stderr and tiny.built() == []
    done = registered(tiny, python, "--find-links", str(house), "--leave-out", "rbt-beta")
    assert done.returncode == 0, done.stderr
    assert not index.asked.is_set()
    assert verdict(tiny)["origin"]["accepted"] == {"rbt-beta": "not installed"}
    refused = registered(tiny, python, "--find-links", str(tmp_path / "nowhere"))
    assert refused.returncode == 1 and "is not a folder; join the wheelhouse's parts first" in refused.stderr


def test_a_built_stack_is_not_replaced(tiny: Site, tmp_path: Path, wheels: dict[str, Path]) -> None:
    assert tiny.build().returncode == 0
    python = interpreter(tmp_path / "base", wheels["rbt-beta==2.0"])
    refused = registered(tiny, python)
    assert refused.returncode == 1 and "tiny already exists, built" in refused.stderr
    assert verdict(tiny)["state"] == "built"
    # Nor one that today's checks have not seen yet, nor one whose verdict Snakemake has deleted.
    (folder,) = tiny.built()
    before = contents(folder / "env")
    change_checks(tiny)
    assert "exists, built" in registered(tiny, python).stderr
    (folder / "verify.json").unlink()
    assert "exists, built" in registered(tiny, python).stderr
    assert contents(folder / "env") == before


def test_a_registration_outlives_its_verdict(tiny: Site, tmp_path: Path, wheels: dict[str, Path]) -> None:
    """Snakemake deletes verify.json before it runs the stack's rule again."""
    python = interpreter(tmp_path / "base", wheels["rbt-beta==2.1"])
    assert registered(tiny, python, "--accept", "rbt-beta").returncode == 0
    (folder,) = tiny.built()
    told, env = verdict(tiny), (folder / "env").stat().st_ino
    (folder / "verify.json").unlink()
    again = tiny.run("build", "tiny", "--stacks-dir", str(tiny.stacks), "--backend", "conda")
    assert again.returncode == 0, again.stderr
    assert verdict(tiny) == told and (folder / "env").stat().st_ino == env
    # What does not verify any more, or does not start, is not built anew either.
    (folder / "verify.json").unlink()
    (tmp_path / "base").rename(tmp_path / "gone")
    refused = tiny.build()
    assert refused.returncode == 1 and "tiny is registered, not built" in refused.stderr
    assert "register it again" in refused.stderr and (folder / "env").stat().st_ino == env


def test_a_name_that_nothing_has_is_refused(tiny: Site, tmp_path: Path, wheels: dict[str, Path]) -> None:
    python = interpreter(tmp_path / "base", wheels["rbt-gamma==7"])
    for option, name, near in [
        ("--accept", "rbt-gama", "rbt-gamma"),
        ("--overlay", "rbt-alfa", "rbt-alpha"),
        ("--leave-out", "rbt-betta", "rbt-beta"),
    ]:
        refused = registered(tiny, python, "--accept", ":extra:", option, name)
        assert refused.returncode == 1 and f"{option}: '{name}' is neither in the lock" in refused.stderr
        assert near in refused.stderr and tiny.built() == []


def test_folders_of_an_interpreter_with_a_quote_in_its_path(tiny: Site, tmp_path: Path) -> None:
    python = interpreter(tmp_path / "ada's base")
    assert registered(tiny, python).returncode == 0
    (folder,) = tiny.built()
    assert [path.parents[2].name for path in site_folders(folder / "env")] == ["env", "ada's base"]


def test_a_start_refuses_a_stack_that_todays_checks_have_not_seen(tiny: Site) -> None:
    """Snakemake finds verify.json and asks for no more: a job would run with yesterday's run-time settings."""
    assert tiny.build().returncode == 0
    (folder,) = tiny.built()
    require_verified([("tiny", folder.name), ("tiny", "absent")], tiny.stacks, tiny.envs)
    before = contents(folder / "env")
    with (tiny.envs / "tiny" / "stack.yaml").open("a") as text:
        text.write("run_caches: {TRITON_CACHE_DIR: triton}\n")
    with pytest.raises(UserError, match=r"run `python -m workflow.stacks build tiny`, which verifies it again"):
        require_verified([("tiny", folder.name)], tiny.stacks, tiny.envs)
    again = tiny.build()
    assert again.returncode == 0 and "verifying the existing environment" in again.stderr
    require_verified([("tiny", folder.name)], tiny.stacks, tiny.envs)
    assert verdict(tiny)["run"]["caches"] == {"TRITON_CACHE_DIR": "triton"} and contents(folder / "env") == before
