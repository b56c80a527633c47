"""A release of TRL or ms-swift is a row, and no other file of its folder names one."""

import ast
import importlib.metadata

import pytest

from common.files import ROOT
from trainers.swift import timers as swift
from trainers.timers.tree import HfRelease, driven
from trainers.trl import timers as trl

SERIES = {release.series for release in (*trl.RELEASES, *swift.RELEASES)}


@pytest.mark.parametrize("trainer", ["trl", "swift"])
def test_no_other_file_names_a_release(trainer):
    files = [
        file
        for file in (ROOT / "trainers" / trainer).rglob("*.py")
        if file.parent.name == "driver" or file.name != "timers.py"
    ]
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and node.value in SERIES
    ]
    assert not found


@pytest.mark.parametrize(
    ("installed", "series"),
    [("1.16.0", "1.16"), ("1.17.2", "1.16"), ("2.0.0", "1.16"), ("1.8", "1.9"), ("0.29.1", "1.9")],
)
def test_an_undeclared_release_is_driven_as_the_nearest(installed, series, monkeypatch):
    rows = [HfRelease("1.16", (), {"a": "b"}), HfRelease("1.9", (), {"a": "b"}), HfRelease("1.8", ())]
    monkeypatch.setattr(importlib.metadata, "version", lambda package: installed)
    assert driven(rows, "trl").series == series
