"""Imports as the contracts of pyproject.toml allow them, and rules of code that no linter states."""

import ast
import graphlib
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from engines import engines
from trainers.registry import trainers
from trainers.verl.releases import releases
from workflow.stacks.found import OLDEST_PYTHON

from .source import ROOMS, ROOT, files_of, tree

# They are loaded by a stack's Python, where the controller is not installed.
IN_STACKS = (
    *("common", "node", "engines", "trainers/__init__.py", "trainers/resolve.py", "trainers/*/driver"),
    *("trainers/*/__init__.py", "trainers/verl/releases"),
)


def imported(file):
    """The modules that a file imports, anywhere in it."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""


def test_the_contracts_of_imports_are_kept():
    """They are in pyproject.toml; `make check` asks the same."""
    linter = Path(sys.executable).with_name("lint-imports")
    assert linter.is_file(), "the lock of envs/dev has it: make .venv/dev.stamp"
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_no_modules_import_each_other_in_a_circle():
    """Annotations may: a case names its trainer, whose checks take cases."""
    files = [file for room in ROOMS for file in files_of(room)]
    modules = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}
    graph = {}
    for name, file in modules.items():
        nodes = [*ast.walk(tree(file))]
        typing = [node for node in nodes if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
        skipped = {id(one) for block in typing for node in block.body for one in ast.walk(node)}
        found = [one for one in nodes if isinstance(one, ast.ImportFrom) and id(one) not in skipped]
        parts = {(one.module or "", alias.name) for one in found for alias in one.names}
        graph[name] = {at if (at := f"{module}.{part}") in modules else module for module, part in parts} - {name}
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.full("a type checker reads all of it")
def test_code_in_stacks_runs_with_the_oldest_python_of_an_environment_as_found():
    files = [str(file) for pattern in IN_STACKS for file in files_of(pattern)]
    command = [sys.executable, "-m", "mypy", "--python-version", OLDEST_PYTHON, *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "checked" in done.stdout, done.stderr
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    # Which keys may be absent is never asked there (common/contracts.py).
    assert not [line for line in errors if "NotRequired" not in line and "TypedDict" not in line]


def test_common_imports_only_the_standard_library():
    known = {*sys.stdlib_module_names, "common"}
    wrong = [f"{file.name}: {name}" for file in files_of("common") for name in imported(file)]
    assert not [one for one in wrong if one.split(": ")[1].split(".")[0] not in known]


def test_imports_of_benches_and_scripts_exist():
    """No type checker reads them, and they run too long for a test."""
    missing, here = [], {*ROOMS, "bench", "tests"}
    for file in [*files_of("bench"), *files_of("scripts")]:
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in here:
                module = importlib.import_module(node.module)
                for alias in node.names:
                    if not hasattr(module, alias.name):
                        try:
                            importlib.import_module(f"{node.module}.{alias.name}")
                        except ImportError:
                            missing.append(f"{file.relative_to(ROOT)}: {node.module}.{alias.name}")
    assert not missing


def test_no_two_modules_have_one_name():
    rooms = [room for room in ROOMS if room not in ("trainers", "engines")]
    names = [file.stem for room in rooms for file in files_of(room) if not file.stem.startswith("__")]
    assert sorted(names) == sorted({*names})


# A name of a trainer, an engine or a release; the last two may come.
NAMES = {
    # `command` is also a word of bash's grammar.
    *(trainer.name for trainer in trainers() if trainer.name != "command"),
    *(release.version for release in releases()),
    *(engine.name for engine in engines()),
    *("replay", "lmdeploy"),
}


def literals_compared(file):
    """The comparisons of a file in which such a name stands as a literal."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Compare):
            sides = [*node.comparators, node.left]
            values = [one for side in sides for one in (getattr(side, "elts", None) or [side])]
            if any(isinstance(one, ast.Constant) and one.value in NAMES for one in values):
                yield f"{file.name}:{node.lineno} {ast.unparse(node)}"


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in ("engines", "trainers")])
def test_no_comparison_with_a_trainers_or_engines_name(room):
    """It asks the object of its folder instead (trainers/protocol.py, engines/engine.py)."""
    assert not [one for file in files_of(room) for one in literals_compared(file)]
