"""The command line: help with examples that are understood, and exit codes as documented."""

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
import yaml

from workflow.cli import COMMANDS, main
from workflow.commands.parser import EXIT_CODES, parser

from .importing import ROOT
from .programs import executable

LISTED = [name for name, command in COMMANDS.items() if command.meaning]
PROGRAM = [sys.executable, "-m", "workflow.cli"]


def help_of(*words):
    with pytest.raises(SystemExit) as ended, contextlib.redirect_stdout(io.StringIO()) as said:
        main([*words, "--help"])
    assert ended.value.code == 0
    return said.getvalue()


@pytest.mark.parametrize("name", LISTED)
def test_help_has_examples_that_the_program_understands_and_exit_codes(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = help_of(name)
    assert max(map(len, text.splitlines())) <= 90, text
    assert {int(code) for code in re.findall(r"^  (\d+)  ", text.partition("\nexit codes:\n")[2], re.M)} == {
        *EXIT_CODES,
        *COMMANDS[name].exit_codes,
    }
    examples = re.findall(r"^  rolloutbench (.*)$", text.partition("\nexamples:\n")[2], re.M)
    assert examples
    for example in examples:
        words = shlex.split(example.partition(" > ")[0])
        assert words[0] == name and parser(COMMANDS).parse_args(words).command == name, example


def test_help_lists_the_commands_for_people(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    listed = re.findall(r"^    ([a-z-]+)(?: |$)", help_of().partition("COMMAND\n")[2].partition("\noptions:")[0], re.M)
    assert listed == LISTED


def interrupted(folder):
    """`check` gets a Ctrl-C while it waits for a program that does not answer."""
    executable(folder / "nvidia-smi", f"touch {folder}/asked; exec sleep 10")
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    program = subprocess.Popen([*PROGRAM, "check"], cwd=folder, env=environ() | {"PATH": path}, text=True)
    while not (folder / "asked").exists():
        assert program.poll() is None
        time.sleep(0.05)
    program.send_signal(signal.SIGINT)
    return program.wait(60)


def piped(folder):
    """`new` into a pipe that nobody reads."""
    reads, writes = os.pipe()
    os.close(reads)
    program = subprocess.Popen([*PROGRAM, "new", "piped.yaml"], cwd=folder, stdout=writes, env=environ())
    os.close(writes)
    return program.wait()


def environ():
    return os.environ | {"PYTHONPATH": str(ROOT)}


def code_of(*words):
    try:
        return main(list(words))
    except SystemExit as asked:
        return int(str(asked.code))


def test_exit_codes_are_those_of_the_documentation(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = [code_of("--help"), code_of("check", "nosuch.yaml"), code_of("check", "--nosuch"), interrupted(tmp_path)]
    assert [*found, piped(tmp_path)] == [0, 1, 2, 130, 141] == list(EXIT_CODES)
    assert "error: nosuch.yaml does not exist" in capsys.readouterr().err
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", page, re.M)] == sorted(
        {*EXIT_CODES, *(code for one in COMMANDS.values() for code in one.exit_codes)}
    )


def test_there_are_nine_commands():
    assert LISTED == ["new", "check", "run", "status", "cancel", "report", "compare", "ab", "history"]


@pytest.mark.parametrize("command", ["status", "report", "cancel"])
def test_of_an_experiment_that_was_started_elsewhere_the_folder_is_named(command, tmp_path, monkeypatch, capsys):
    """Its script and its results are seen from there: from here all its runs would look as if never started."""
    folder = tmp_path / "my runs"
    (folder / "results" / "mine").mkdir(parents=True)
    arms = {"a": {"trainer": "command", "engine": "vllm", "options": {"script": "run.sh"}}}
    (folder / "c.yaml").write_text(yaml.safe_dump({"experiment": "mine", "baseline": "a", "arms": arms}))
    (folder / "run.sh").write_text("python3 -m verl.trainer.main_ppo a=1\n")
    monkeypatch.chdir(tmp_path)
    assert main([command, "my runs/c.yaml"]) == 1
    said = capsys.readouterr().err
    assert (
        "the results of my runs/c.yaml are in my runs/results/mine" in said
        and "cd 'my runs', and then give c.yaml" in said
    )
    monkeypatch.chdir(folder)
    main([command, "c.yaml"])
    assert "cd " not in capsys.readouterr().err
