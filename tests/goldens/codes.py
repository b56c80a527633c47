"""Codes of findings and verdicts in source text, wherever in the product they stand."""

import ast
import tomllib

from ..source import ROOMS, files_of, tree

LEVELS = {"impossible", "unequal", "odd", "error", "warning", "note"}


def texts_in(root):
    """Texts that stand where a code stands (behind a level, or as `code`), and all texts."""
    coded = set()
    texts = set()
    for file in (file for room in ROOMS for file in files_of(room)):
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
            elif isinstance(node, ast.Call):
                coded |= {one.value.value for one in node.keywords if one.arg == "code" and _is_text(one.value)}
                pairs = zip(node.args, node.args[1:], strict=False)
                coded |= {two.value for one, two in pairs if _is_level(one) and _is_text(two)}
    coded |= set(codes_of_tables(root))
    return {text for text in coded if _is_code(text)}, texts | coded


def codes_of_tables(root):
    """The codes of the rules in trainers' tables, of the preflight's texts, and of the variables that cost time."""
    for file in root.glob("trainers/*/checks.toml"):
        yield from (row["code"] for row in tomllib.loads(file.read_text(encoding="utf-8"))["checks"])
    yield from tomllib.loads((root / "workflow" / "preflight" / "findings.toml").read_text(encoding="utf-8"))
    table = root / "workflow" / "preflight" / "variables.toml"
    for row in tomllib.loads(table.read_text(encoding="utf-8"))["variable"]:
        yield row["name"].lower().replace("_", "-")


def _is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_level(node):
    if isinstance(node, ast.IfExp):
        return _is_level(node.body) and _is_level(node.orelse)
    return _is_text(node) and node.value in LEVELS


def is_made_in(texts, code):
    """Whether a code stands there as a text (of several words), as a variable's name, or put together of two texts."""
    start, _, end = code.rpartition("-")
    return ("-" in code and code in texts) or code.upper().replace("-", "_") in texts or {start, f"-{end}"} <= texts


def _is_code(text):
    return isinstance(text, str) and bool(text) and text.replace("-", "").isalnum() and text == text.lower()
