"""Where a folder has modules with the names of ours and our libraries', no program of ours imports one of them."""

import pytest
import yaml

from tests.analysis.wandb_server import KEY, ServedRun, WandbServer
from workflow.commands.parser import COMMANDS

from .poisoned import CONSOLE, ROOT, SCRIPT, Folder, script_of

NAME = "me/p/a"
IMPORTED = {
    "experiment": "read",
    "baseline": "vllm",
    "arms": {
        name: {"trainer": "verl", "engine": name, "import": {"version": "0.4.1", "runs": [f"{name}.log"]}}
        for name in ("vllm", "sglang")
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    one = Folder(tmp_path_factory.mktemp("home") / "theirs")
    for engine in ("vllm", "sglang"):
        (one.at / f"{engine}.log").write_text(CONSOLE)
    (one.at / "run.sh").write_text(SCRIPT)
    return one


@pytest.fixture(scope="module")
def read(folder):
    """The rules that read logs, to the report."""
    done = folder.snakemake(IMPORTED, "--cores", "1")
    assert (folder.imported(), done.returncode) == ([], 0), done.stdout + done.stderr
    return folder


# Each command as its users give it, and its exit code.
COMMAND_LINES = {
    "compare": ("vllm=vllm.log sglang=sglang.log", 0),
    "ab": ("run.sh --vary MODE=a,b", 0),
    "new": ("mine.yaml", 0),
    "check": ("x.yaml", 0),
    "run": ("x.yaml --dry-run", 0),
    "status": ("x.yaml", 0),
    "cancel": ("x.yaml", 0),
    "report": ("x.yaml", 0),
    "history": ("results", 0),
}


@pytest.mark.parametrize("name", COMMAND_LINES)
def test_commands(read, name):
    words, code = COMMAND_LINES[name]
    done = read.run("rolloutbench", name, *words.split())
    assert read.imported() == [], done.stdout + done.stderr
    assert code is None or done.returncode == code, done.stdout + done.stderr


def test_every_command_is_tried(read):
    for_rules = {name for name, command in COMMANDS.items() if not command.meaning}
    assert COMMANDS.keys() - for_rules == COMMAND_LINES.keys()


def test_a_run_of_wandbs_server(folder):
    """Its key goes where the user's own settings say, whatever the folder's name."""
    rows = [
        {"_step": step, "training/global_step": step, "timing_s/step": 3 + 1 / step, "timing_s/gen": 2.0}
        for step in range(1, 8)
    ]
    run = ServedRun(rows, config={"trainer": {"value": {"nnodes": 1}}})
    with WandbServer({NAME: run}) as server, WandbServer({NAME: run}) as thief:
        settings = folder.at.parent / ".config" / "wandb" / "settings"
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text(f"[default]\nbase_url = {server.url}\n")
        for name in ("wandb", "."):
            (folder.at / name / "settings").write_text(f"[default]\nbase_url = {thief.url}\n")
        done = folder.run(
            "rolloutbench", "compare", f"a=wandb:{NAME}", "b=vllm.log", "--verdict-only", WANDB_API_KEY=KEY
        )
        assert (folder.imported(), thief.asked, thief.keys) == ([], [], set()), done.stderr
        assert server.keys and done.returncode == 0, done.stdout + done.stderr
        refused = folder.run("rolloutbench", "compare", "a=wandb:me/p/none", "b=vllm.log", WANDB_API_KEY=KEY)
        assert f"{server.url} has no run me/p/none" in refused.stderr and not thief.asked, refused.stderr


def test_a_script_is_trained_and_its_own_environment_is_as_it_was(tmp_path):
    """From the rule to the job, which submitit starts, and to the program that reads the log."""
    folder, project = Folder(tmp_path / "theirs"), tmp_path / "project"
    done = folder.snakemake(script_of(project), "--cores", "2")
    assert (folder.imported(), done.returncode) == ([], 0), done.stdout + done.stderr
    assert (project / "env.txt").read_text().split() == ["PYTHONUNBUFFERED=1"]
    assert (folder.at / "results" / "x" / "verdict.json").is_file()


def test_what_runs_in_a_stack(tmp_path, stack_python):
    """The data and the settings, which the stack's Python prepares in the user's folder."""
    stack_python("trl-transformers-cpu")
    folder = Folder(tmp_path / "theirs")
    (folder.at / ".stacks").symlink_to(ROOT / ".stacks")
    config = yaml.safe_load((ROOT / "config.yaml").read_text())
    config |= {"baseline": "transformers", "arms": {"transformers": config["arms"]["transformers"]}}
    done = folder.snakemake(config, "--cores", "1", "--until", "settings", "inputs")
    assert (folder.imported(), done.returncode) == ([], 0), done.stdout + done.stderr
    assert list(folder.at.glob("results/*/inputs/*/inputs.json")) and list(folder.at.glob("results/*/settings/*.json"))
