"""The wings meet only through files: what each of them may import."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def imported(file):
    """The modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # A relative import stays in its own wing here: none goes up.
            assert node.level <= 1, f"{file} imports from {'.' * node.level}"
            yield node.module or "" if node.level == 0 else ""


def wing_of(module):
    first, *rest = module.split(".")
    return "workflow.jobs" if first == "workflow" and rest[:1] == ["jobs"] else first


@pytest.mark.parametrize(
    ("folder", "never"),
    [
        ("analysis", {"workflow", "workflow.jobs", "bench", "tests"}),
        ("workflow/jobs", {"workflow", "analysis", "bench", "tests"}),
        ("workflow", {"bench", "tests", "rules"}),
    ],
)
def test_a_wing_imports_no_other_but_along_the_arrows(folder, never):
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    wrong = {f"{file.relative_to(ROOT)}: {name}" for file in files for name in imported(file) if wing_of(name) in never}
    assert not wrong
