"""The project's own modules as syntax trees, parsed once for all tests of a process."""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("common", "node", "engines", "trainers", "analysis", "workflow")


@functools.cache
def tree(file):
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def files_of(pattern):
    """The Python files that match a pattern, and those in folders that do."""
    found = [path for at in ROOT.glob(pattern) for path in (sorted(at.rglob("*.py")) if at.is_dir() else [at])]
    assert found, pattern
    return found


@functools.cache
def texts_of(file):
    """Every text in a module, a line each; what is put into it, and what is added to it, is a NUL character."""
    texts = []
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.JoinedStr):
            texts.append("".join(str(one.value) if isinstance(one, ast.Constant) else "\0" for one in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
    return "\n".join(f"{text}\0" for text in texts)
