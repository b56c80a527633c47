"""Makes small faults of the program's source: places by cosmic-ray's operators, one fault a place, sampled by hash."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import parso.python.tree
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator

_COMPARISONS = ("Eq", "NotEq", "Lt", "LtE", "Gt", "GtE")
# Those that a person could have written. Others (+ for |, `is` for ==) mostly end in a TypeError, which flatters the
# tests, or change nothing.
_NAMES = (
    *("AddNot", "NumberReplacer", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse"),
    *("ReplaceFalseWithTrue", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop"),
    *(f"ReplaceUnaryOperator_{kind}" for kind in ("Delete_Not", "Delete_USub", "Delete_Invert")),
    *(
        f"ReplaceBinaryOperator_{kind}"
        for kind in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Div", "Mod_FloorDiv", "Pow_Mul")
    ),
    *("ReplaceBinaryOperator_BitAnd_BitOr", "ReplaceBinaryOperator_BitOr_BitAnd"),
    *("ReplaceComparisonOperator_Is_IsNot", "ReplaceComparisonOperator_IsNot_Is"),
    *(f"ReplaceComparisonOperator_{a}_{b}" for a in _COMPARISONS for b in _COMPARISONS if a != b),
)
# Functions and methods; those that Python has without an import stand first.
_BUILTINS = (("min", "max"), ("any", "all"))
_METHODS = (
    *(("minimum", "maximum"), ("fmin", "fmax"), ("floor", "ceil"), ("mean", "sum"), ("median", "mean")),
    *(("isna", "notna"), ("startswith", "endswith"), ("cummin", "cummax"), ("first", "last"), ("lower", "upper")),
    *(("removeprefix", "removesuffix"), ("idxmin", "idxmax"), ("argmin", "argmax")),
)
_SWAPPED_BUILTINS = {**dict(_BUILTINS), **{b: a for a, b in _BUILTINS}}
_SWAPPED = _SWAPPED_BUILTINS | {b: a for a, b in reversed(_METHODS)} | dict(reversed(_METHODS))
# A guard that fires only where two lists of ours differ in length.
_GUARDS = frozenset({"strict"})


class SwapCalls(Operator):
    """The opposite function: max for min, all for any."""

    def mutation_positions(self, node: object) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        if isinstance(node, parso.python.tree.Name) and node.value in _SWAPPED:
            before, after = node.get_previous_leaf(), node.get_next_leaf()
            method = before is not None and before.value == "."
            if after is not None and after.value == "(" and (method or node.value in _SWAPPED_BUILTINS):
                yield node.start_pos, node.end_pos

    def mutate(self, node: parso.python.tree.Name, index: int) -> parso.python.tree.Name:
        return parso.python.tree.Name(_SWAPPED[node.value], node.start_pos, node.prefix)

    @classmethod
    def examples(cls) -> Sequence[object]:
        return ()


OPERATORS: dict[str, type[Operator]] = {"SwapCalls": SwapCalls} | {
    name: get_operator(f"core/{name}") for name in _NAMES
}


@dataclass(frozen=True)
class Mutant:
    """One fault at one place."""

    path: str
    line: int
    """Where it begins, from 1."""
    operator: str
    occurrence: int
    rank: str
    """A hash of the place and its line's text: it stays when other lines change."""

    def source(self, root: Path) -> str:
        """The whole module with the fault in it."""
        mutated = mutate_code(
            (root / self.path).read_text(encoding="utf-8"), OPERATORS[self.operator](), self.occurrence
        )
        assert mutated is not None
        return str(mutated)


def change(source: str, mutated: str) -> tuple[str, str]:
    """The first line that differs as it is and as the fault makes it, without indentation."""
    pairs = zip(source.splitlines(), mutated.splitlines(), strict=False)
    return next(((a.strip(), b.strip()) for a, b in pairs if a != b), ("", ""))


def mutants_of(root: Path, path: str, seed: str) -> list[Mutant]:
    """One mutant for each place of a file that can hold a fault."""
    source = (root / path).read_text(encoding="utf-8")
    lines, tree, left_out = source.splitlines(), get_ast(source), _left_out(source)
    nodes = list(ast_nodes(tree))
    places: dict[tuple[tuple[int, int], str], list[tuple[str, int]]] = {}
    for name, operator in OPERATORS.items():
        positions = (start for node in nodes for start, _ in operator().mutation_positions(node))
        for occurrence, start in enumerate(positions):
            if not any(begin <= start < end for begin, end in left_out) and not _unpacks(lines, start):
                places.setdefault((start, name.partition("_")[0]), []).append((name, occurrence))
    found, seen = [], dict.fromkeys(lines, 0)
    for ((line, column), family), choices in sorted(places.items()):
        text = lines[line - 1]
        seen[text] += 1
        rank = hashlib.sha256(f"{seed} {path} {text.strip()} {column} {family} {seen[text]}".encode()).hexdigest()
        operator, occurrence = choices[int(rank[-8:], 16) % len(choices)]
        found.append(Mutant(path, line, operator, occurrence, rank))
    return found


def sample(root: Path, paths: Sequence[str], seed: str, count: int) -> list[Mutant]:
    """`count` mutants of all places of these files, each place as likely as any other."""
    every = [mutant for path in paths for mutant in mutants_of(root, path, seed)]
    return sorted(sorted(every, key=lambda one: one.rank)[:count], key=lambda one: (one.path, one.line, one.rank))


def _unpacks(lines: Sequence[str], start: tuple[int, int]) -> bool:
    """Whether a `**` is no power, but a mapping that is unpacked."""
    line, column = lines[start[0] - 1], start[1]
    before = line[:column].rstrip()
    return line.startswith("**", column) and (not before or before[-1] in "{([,")


def _left_out(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where a fault changes nothing that a test could see: annotations, decorators, zip's `strict=`, main guards."""
    spans: list[ast.expr] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            spans.append(node.annotation)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            spans += node.decorator_list
        if isinstance(node, ast.FunctionDef) and node.returns is not None:
            spans.append(node.returns)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
            spans.append(node.test)
        if isinstance(node, ast.Call):
            spans += [keyword.value for keyword in node.keywords if keyword.arg in _GUARDS]
    return [((s.lineno, s.col_offset), (s.end_lineno or s.lineno, s.end_col_offset or 0)) for s in spans]


def statement_lines(source: str, line: int) -> range:
    """The lines of the innermost statement that holds a line; of one with a body, its head alone."""
    best = range(line, line + 1)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno or node.lineno
            if line <= end:
                best = range(node.lineno, end + 1)
    return best
