"""Where `bench mutants` puts its faults, and which tests it runs against one."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import mutants
from bench.mutations import Mutant, change, mutants_of

SOURCE = '''"""A module."""

from dataclasses import dataclass

LIMIT = 3


@dataclass(frozen=True)
class Row:
    size: int | None = None


def most(rows: list[Row | None], **more: int) -> int | None:
    """The most, 5 at the least."""
    told = dict(**more)
    if rows and told:
        return max(
            LIMIT,
            len(rows) - 1,
        )
    return min(told.values(), default=LIMIT)


if __name__ == "__main__":
    print(most([]))
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "x.py").write_text(SOURCE)
    return tmp_path


def changes(root: Path, mutants: list[Mutant]) -> set[tuple[str, str]]:
    source = (root / "x.py").read_text()
    return {change(source, mutant.source(root)) for mutant in mutants}


def test_a_fault_is_one_that_a_person_could_have_written(tree: Path) -> None:
    found = mutants_of(tree, "x.py", "seed")
    becomes = {new.replace("  ", " ") for _, new in changes(tree, found)}
    assert {"if rows or told:", "if not rows and told:", "return min("} <= becomes
    assert {"len(rows) + 1,", "return max(told.values(), default=LIMIT)"} <= becomes
    assert becomes & {"LIMIT = 2", "LIMIT = 4"}
    for mutant in found:
        compile(mutant.source(tree), "x.py", "exec")


def test_the_tests_of_the_nearest_file_come_first_the_quickest_of_them() -> None:
    seconds = {"a.py::one": 3.0, "a.py::two": 0.5, "b.py::three": 0.1, "b.py::four": 0.2, "c.py::five": 99.0}
    line = SOURCE.splitlines().index("    if rows and told:") + 1
    told = {"lines": {"x.py": {str(line): ["", "a.py::one", "a.py", "b.py::three", "c.py::five"]}}, "seconds": seconds}
    mutant = Mutant("x.py", line, "ReplaceAndWithOr", 0, "")
    # A fixture of a.py runs the line: all its tests do. c.py's takes longer than a mutant may.
    assert mutants.tests_of(mutant, SOURCE, told) == [["a.py::two", "a.py::one"], ["b.py::three"]]
    on_import = Mutant("x.py", SOURCE.splitlines().index("LIMIT = 3") + 1, "NumberReplacer", 0, "")
    assert mutants.tests_of(on_import, SOURCE, told) == [["a.py::two", "a.py::one"], ["b.py::three"]]
    assert mutants.tests_of(Mutant("y.py", 1, "NumberReplacer", 0, ""), SOURCE, told) == []
    many = {f"a.py::{number}": 0.01 for number in range(mutants.FIRST + 1)}
    told = {"lines": {"x.py": {str(line): ["a.py"]}}, "seconds": many}
    assert [len(part) for part in mutants.tests_of(mutant, SOURCE, told)] == [mutants.FIRST, 1]
