"""Expands words of bash with the values that a script gives to its variables, as bash would.

What has no known value stays as it is written and is listed.
"""

from __future__ import annotations

import ast
import fnmatch
import operator
import os
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from common.errors import UserError

# Of whoever runs a script, and so of whoever reads it.
_PERSONAL = ("HOME", "USER", "LOGNAME")
_NAMES = ("variable_name", "special_variable_name", "subscript")
# As verl's examples ask for an NPU: stacks are for GPUs and CPUs.
_WITHOUT_NPU = re.compile(r"import torch_npu\b.*\|\| echo (\w+)\)$")
_MOST_EFFORT, COMMAND, _WORD = 20_000_000, 1_000, 20
"""Characters of words, of which a command, and a word, costs as much as so many."""
_LONGEST_NAME, _DEEPEST = 200, 200
_ESCAPES = re.compile(r'\\([$`"\\])|\\\n')
_OPERATORS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    **{"-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le},
    **{"-gt": operator.gt, "-ge": operator.ge},
}
_IN_ARITHMETIC = {"==": "-eq", "!=": "-ne", "<": "-lt", "<=": "-le", ">": "-gt", ">=": "-ge"}


class Value(NamedTuple):
    """The words that a node or a variable becomes, and what in them has no known value."""

    words: Sequence[str]
    unknown: Sequence[str] = ()

    @property
    def text(self) -> str:
        """All words in one."""
        return " ".join(self.words)


def _kept(raw: str) -> Value:
    """What has no known value stays as it is written."""
    return Value((raw,), (raw,))


class Effort:
    """What reading a script may cost: it may double a variable forty times, or loop in loops."""

    def __init__(self) -> None:
        self._left = _MOST_EFFORT

    def spend(self, units: int) -> None:
        """`UserError` when too much was spent: characters of expanded words, and commands."""
        self._left -= units
        if self._left < 0:
            raise UserError(
                "the script is too much to follow: its loops, functions and variables become more than "
                f"{_MOST_EFFORT // COMMAND:,} commands, {_MOST_EFFORT // _WORD:,} words or "
                f"{_MOST_EFFORT // 1_000_000} MB of them. Give a script that has the command of the training itself"
            )


class Variables:
    """A script's variables and arguments at a place, and what words become with them."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.effort = Effort()
        self.values = {name: Value((os.environ[name],)) for name in _PERSONAL if name in os.environ}
        self.positional: tuple[str, ...] = tuple(arguments)
        self.passes_arguments = False
        """Whether a word since this was last set to False has all arguments (`"$@"`)."""

    def expand(self, node: Node) -> Value:
        """The words that a node becomes, and what in them has no known value."""
        value = self._expanded(node)
        self._count(value)
        return value

    def _count(self, value: Value) -> None:
        self.effort.spend(sum(map(len, value.words)) + _WORD * len(value.words) + sum(map(len, value.unknown)) + 10)

    def _expanded(self, node: Node) -> Value:
        match node.type:
            case "string":
                if len(node.named_children) == 1 and (spread := self._spread(node.named_children[0])) is not None:
                    return spread
                return self.quoted(node, node.start_byte + 1, node.end_byte - 1)
            case "raw_string":
                return Value([text_of(node)[1:-1]])
            case "ansi_c_string":
                escaped = text_of(node)[2:-1].encode("latin-1", "backslashreplace")
                return Value([escaped.decode("unicode_escape")])
            case "translated_string":
                return self.expand(node.named_children[0])
            case "simple_expansion" | "expansion":
                if (spread := self._spread(node)) is not None:
                    return spread
                (text,), unknown = self._variable(node)
                # Without quotes the shell splits a value into words; what is not known stays whole.
                whole = "|".join([*map(re.escape, unknown), r"\S"])
                return Value(re.findall(f"(?:{whole})+", text), unknown)
            case "concatenation":
                return self._joined(node)
            case "array":
                parts = [self.expand(child) for child in node.named_children if child.type != "comment"]
                return Value(
                    [word for one in parts for word in one.words], [name for one in parts for name in one.unknown]
                )
            case "arithmetic_expansion":
                return self._arithmetic(node)
            case "command_substitution" | "process_substitution":
                without = _WITHOUT_NPU.search(text_of(node))
                return Value([without[1]]) if without else _kept(text_of(node))
            case _:
                return Value([re.sub(r"\\(\n)?(?(1)|(.))", lambda found: found[2] or "", text_of(node))])

    def _joined(self, node: Node) -> Value:
        words, unknown, at = [""], list[str](), node.start_byte
        for child in node.children:
            words[-1] += _between(node, at, child.start_byte).decode(errors="replace")
            expanded, missing = self.expand(child)
            first, *others = expanded or [""]
            words[-1] += first
            words += others
            unknown += missing
            at = child.end_byte
        return Value(words, unknown)

    def quoted(self, node: Node, start: int, end: int) -> Value:
        """The text between two places of a quoted string or a here-document."""
        text, unknown, at = "", list[str](), start
        for child in node.named_children:
            if child.type in ("string_content", "heredoc_content"):
                continue
            text += unescaped(_between(node, at, child.start_byte))
            # Inside quotes a value is not split into words.
            variable = child.type in ("simple_expansion", "expansion")
            value = self._variable(child) if variable else self.expand(child)
            self._count(value)
            text += value.text
            unknown += value.unknown
            at = child.end_byte
        return Value([text + unescaped(_between(node, at, end))], unknown)

    def _spread(self, node: Node) -> Value | None:
        """The words of `"$@"` and `"${NAME[@]}"`; None for anything else."""
        if node.type not in ("simple_expansion", "expansion"):
            return None
        raw = text_of(node)
        if (all_of := re.fullmatch(r"\$[@*]|\$\{[@*](?::(\d{1,9}))?\}", raw)) is not None:
            self.passes_arguments = True
            return Value(self.positional[max(0, int(all_of[1] or 1) - 1) :])
        if (found := re.fullmatch(r"\$\{(\w+)\[[@*]\]\}", raw)) is not None:
            return self.values.get(found[1], _kept(raw))
        return None

    def _variable(self, node: Node) -> Value:
        """A variable's value as one word."""
        raw = text_of(node)
        if raw.endswith(("$@", "$*")):
            self.passes_arguments = True
            return Value([" ".join(self.positional)])
        name = next((c for c in node.named_children if c.type in _NAMES), None)
        known = self._value_of(text_of(name)) if name is not None else None
        if raw.startswith("${#") and raw.endswith(("[@]}", "[*]}")) and known is not None and not known.unknown:
            return Value([str(len(known.words))])
        if name is None or raw.startswith(("${#", "${!")):
            return _kept(raw)
        rest = [child for child in node.children if child.start_byte >= name.end_byte and child.type != "}"]
        if not rest:
            return _kept(raw) if known is None else Value([known.text], known.unknown)
        mark = text_of(rest[0])
        parts = [self.expand(child) for child in rest[1:]]
        if "$((" in (written := _between(node, rest[0].end_byte, node.end_byte - 1).decode(errors="replace")):
            # The grammar takes the sum in `${N:-$((A / 2))}` for a command.
            value = parsed(f"X={written}").named_children[0].child_by_field_name("value")
            parts = [self.expand(value) if value is not None else _kept(written)]
        argument = "".join(word for one in parts for word in one.words)
        missing = [name for one in parts for name in one.unknown]
        empty = known is None or (mark.startswith(":") and not "".join(known.words))
        if mark in (":-", "-", ":=", "="):
            return Value([argument], missing) if known is None or empty else Value([known.text], known.unknown)
        if mark in (":+", "+"):
            return Value([""]) if empty else Value([argument], missing)
        if mark in ("#", "##", "%", "%%") and known is not None and not known.unknown:
            # Each of the text's places is compared.
            self.effort.spend(len(known.text) * len(known.text))
            return Value([_stripped(known.text, mark, argument)], missing)
        return _kept(raw)

    def _value_of(self, name: str) -> Value | None:
        if len(name) > _LONGEST_NAME:
            return None
        if name.isdigit() and name != "0":
            place = int(name) - 1
            return Value((self.positional[place],)) if place < len(self.positional) else None
        array, bracket, index = name.rstrip("]").partition("[")
        value = self.values.get(array)
        if value is None or not bracket or index in ("@", "*"):
            return value
        known = index.isdigit() and not value.unknown and int(index) < len(value.words)
        return Value((value.words[int(index)],)) if known else None

    def _arithmetic(self, node: Node) -> Value:
        raw = text_of(node)

        def number(found: re.Match[str]) -> str:
            value = self._value_of(found[1])
            return value.text if value else "?"

        inner = raw.removeprefix("$((").removesuffix("))").replace("$((", "((")
        expression = re.sub(r"\$?\{?([A-Za-z_]\w*|(?<=\$)\d)\}?", number, inner)
        try:
            return Value([str(_evaluated(ast.parse(expression.strip(), mode="eval").body))])
        except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):  # the parser's own limits, too
            return _kept(raw)

    def assignment(self, node: Node) -> tuple[str, Value] | None:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is None or name.type != "variable_name":
            return None
        given = self.expand(value) if value is not None else Value([""])
        is_array = value is not None and value.type == "array"
        # An assignment's value is not split into words.
        words, unknown = given.words if is_array else [given.text], given.unknown
        if any(child.type == "+=" for child in node.children):
            before = self.values.get(text_of(name), Value(()))
            self._count(before)
            words, unknown = [*before.words, *words], [*before.unknown, *unknown]
            words = words if is_array else ["".join(words)]
        return text_of(name), Value(tuple(words), tuple(dict.fromkeys(unknown)))

    def truth(self, test: Node) -> bool | None:
        """The result of a test about known words; None if it cannot be known here, or is no test."""
        named = test.named_children
        mark = next((text_of(one) for one in test.children if not one.is_named or one.type == "test_operator"), "")
        match test.type:
            case "test_command":
                return self.truth(named[0]) if named else None
            case "variable_assignment":
                return True
            case "negated_command" | "unary_expression" if mark == "!":
                inner = self.truth(named[-1])
                return None if inner is None else not inner
            case "unary_expression" if mark in ("-z", "-n"):
                fields, unknown = self.expand(named[-1])
                empty = not "".join(fields) or bool(unknown)
                return None if any(name in _PERSONAL for name in unknown) else empty is (mark == "-z")
            case "list" | "binary_expression" if mark in ("&&", "||"):
                results = {self.truth(child) for child in named}
                decides = mark == "||"
                return decides if decides in results else None if None in results else not decides
            case "compound_statement" if mark == "((" and len(named) == 1 and len(named[0].named_children) == 2:
                mark = _IN_ARITHMETIC.get(text_of(named[0].children[1]), "")
                return self._compared(mark, [self._arithmetic(side) for side in named[0].named_children])
            case "binary_expression" if len(named) - (named[1].type == "test_operator") == 2:
                return self._compared(mark, [self.expand(named[0]), self.expand(named[-1])])
        return None

    @staticmethod
    def _compared(mark: str, sides: Sequence[Value]) -> bool | None:
        (left, right), unknown = ("".join(side.words) for side in sides), any(side.unknown for side in sides)
        if unknown:
            return None
        if mark in ("==", "=", "!="):
            return fnmatch.fnmatchcase(left, right) is (mark != "!=")
        is_whole = all(re.fullmatch(r"-?\d{1,18}", side) for side in (left, right))
        return _COMPARISONS[mark](int(left), int(right)) if is_whole and mark in _COMPARISONS else None


def parsed(text: str | bytes) -> Node:
    """The syntax tree of a script; `UserError` where it is too deep for those who walk it."""
    root = _parser().parse(text.encode() if isinstance(text, str) else text).root_node
    level = [root]
    for _ in range(_DEEPEST):
        if not (level := [child for node in level for child in node.children]):
            return root
    raise UserError(f"the script has more than {_DEEPEST} brackets or commands within one another; simplify it")


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def text_of(node: Node) -> str:
    """A node as the script has it."""
    return (node.text or b"").decode(errors="replace")


def _between(node: Node, start: int, end: int) -> bytes:
    return (node.text or b"")[start - node.start_byte : end - node.start_byte]


def unescaped(part: bytes, keep: bytes = b"") -> str:
    """A quoted text without its escapes, except those of `keep`."""

    def plain(found: re.Match[str]) -> str:
        return found[0] if found[1] and found[1].encode() in keep else found[1] or ""

    return _ESCAPES.sub(plain, part.decode(errors="replace"))


def _stripped(text: str, mark: str, pattern: str) -> str:
    """`${NAME#pattern}` and its likes: without the shortest or longest matching beginning or end."""
    cuts = range(len(text) + 1)
    if mark[0] == "#":
        ends = [cut for cut in cuts if fnmatch.fnmatchcase(text[:cut], pattern)]
        return text[(max if len(mark) == 2 else min)(ends, default=0) :]
    starts = [cut for cut in cuts if fnmatch.fnmatchcase(text[cut:], pattern)]
    return text[: (min if len(mark) == 2 else max)(starts, default=len(text))]


def _evaluated(node: ast.expr) -> int:
    """Whole numbers and their operations; `ValueError` for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluated(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _evaluated(node.left), _evaluated(node.right)
        if isinstance(node.op, ast.Pow) and (right > 64 or left.bit_length() > 64):
            raise ValueError(right)
        return _OPERATORS[type(node.op)](left, right)
    raise ValueError(ast.dump(node))
