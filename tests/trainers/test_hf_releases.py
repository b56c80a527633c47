"""A release of TRL or ms-swift is a row of its timers, and no other file of its folder names one."""

import ast

import pytest

from common.files import ROOT
from trainers.registry import releases

SERIES = {series for trainer in ("trl", "swift") for series in releases(trainer)}


@pytest.mark.parametrize("trainer", ["trl", "swift"])
def test_no_other_file_names_a_release(trainer):
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in (ROOT / "trainers" / trainer).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and node.value in SERIES
    ]
    assert not found
