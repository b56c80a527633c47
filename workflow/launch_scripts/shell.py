"""Reads a bash script into its commands, with the values that the script itself gives to its variables.

tree-sitter-bash has the grammar. Functions are read where they are called, loops over known values once for each value,
and of a condition that cannot be decided every branch. What is not known stays as it is written and is listed.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tree_sitter import Node

from common.messages import join_first, shortened
from trainers.launching import Left
from workflow.launch_scripts.expansion import COMMAND, Value, Variables, parsed, text_of, unescaped
from workflow.launch_scripts.script import Script, ShellCommand, Word

_MOST_TURNS, _DEEPEST = 20, 10
NOWHERE = -(10**9)
"""A word whose place in the script is not exact begins below 0."""
# Programs that run a script which is given to them as text.
_SHELLS = ("bash", "sh", "zsh", "eval", "sbatch", "srun", "ssh", "salloc")


def read_script(text: str, arguments: Sequence[str] = ()) -> Script:
    """The commands of a bash script that is started with these arguments."""
    return _Reader(text, arguments).read()


class _Reader:
    def __init__(self, text: str, arguments: Sequence[str]) -> None:
        self._source = text.encode()
        self._script = Script(text)
        self._variables = Variables(arguments)
        self._functions: dict[str, Node] = {}
        self._exported: set[str] = set()
        self._context: tuple[str, ...] = ()
        # Nodes of an inner script count from its own beginning, and those of a variable's text stand in its line.
        self._base = self._base_line = self._line_of_text = 0

    def read(self) -> Script:
        self._walk(parsed(self._source))
        return self._script

    # What runs

    def _walk(self, node: Node) -> None:
        self._variables.effort.spend(COMMAND)
        match node.type:
            case "ERROR":
                self._note(node, "not understood")
                self._walk_children(node)
            case "command" | "unset_command":
                self._command(node)
            case "variable_assignment":
                self._assign(node)
            case "declaration_command":
                self._declare(node)
            case "redirected_statement":
                self._redirected(node)
            case "function_definition":
                name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
                if name is not None and body is not None:
                    self._functions[text_of(name)] = body
            case "for_statement":
                self._loop(node)
            case "while_statement" | "c_style_for_statement":
                with self._inside("while" if node.type == "while_statement" else "for"):
                    self._walk_children(node)
            case "if_statement" | "elif_clause":
                self._if(node)
            case "case_statement":
                self._case(node)
            case "list":
                self._list(node)
            case "comment" | "heredoc_body" | "string" | "word" | "test_command":
                pass
            case _:
                self._walk_children(node)

    def _walk_children(self, node: Node) -> None:
        for child in node.named_children:
            self._walk(child)

    def _command(self, node: Node, redirects: Sequence[str] = (), here: Node | None = None) -> None:
        self._variables.passes_arguments = False
        assignments: dict[str, Word] = {}
        words: list[Word] = []
        for child in node.children:
            if child.type == "variable_assignment":
                if (found := self._variables.assignment(child)) is not None:
                    assignments[found[0]] = self._word(child, found[1])
            elif child.type in ("herestring_redirect", "file_redirect", "heredoc_redirect", "comment"):
                continue
            elif words and words[-1].text.endswith("$") and words[-1].end == self._base + child.start_byte:
                words[-1] = self._joined(words[-1], child)
            elif node.type == "command" or child.is_named or child.type == "unset":
                words += self._words(child)
        passes = self._variables.passes_arguments
        name = words[0].text if words else ""
        if name == "shift":
            self._variables.positional = self._variables.positional[1:]
        if name == "unset":
            for word in words[1:]:
                self._variables.values.pop(word.text, None)
                self._exported.discard(word.text)
                self._script.exports.pop(word.text, None)
        if name in self._functions and len(self._context) < _DEEPEST:
            before, self._variables.positional = self._variables.positional, tuple(word.text for word in words[1:])
            with self._inside(f"function {name}"):
                self._walk(self._functions[name])
            self._variables.positional = before
            return
        end = words[-1].end if words else self._base + node.end_byte
        command = ShellCommand(
            tuple(words), self._line(node), assignments, self._context, tuple(redirects), passes, end
        )
        self._script.commands.append(command)
        self._inner_scripts(command, node, here)

    def _inner_scripts(self, command: ShellCommand, node: Node, here: Node | None) -> None:
        """The script in `bash -c "..."`, and in a here-document for a shell."""
        names = [word.text.rpartition("/")[2] for word in command.words]
        if not any(name in _SHELLS for name in names):
            return
        if here is not None and names[0] in _SHELLS:
            self._inner(here.start_byte, here.end_byte, here)
        texts = [child for child in node.named_children if child.type in ("string", "raw_string")]
        if names[0] == "eval" and not texts:
            self._inner_of_variables(" ".join(word.text for word in command.words[1:]), node)
        elif texts and any(word.text in ("-c", "-lc", "-ic", "eval") for word in command.words):
            last = texts[-1]
            values = [self._variables.expand(c)[0] for c in last.named_children if c.type.endswith("expansion")]
            if any(len(words) > 1 for words in values):
                self._inner_of_variables(
                    self._variables.quoted(last, last.start_byte + 1, last.end_byte - 1).text, last
                )
            else:
                self._inner(last.start_byte + 1, last.end_byte - 1, last)

    def _inner_of_variables(self, text: str, node: Node) -> None:
        """Commands that a variable holds: their quotes count only now, and all of them stand in the node's line."""
        self._read_inside(text.encode(), NOWHERE, 0, self._line(node))

    def _inner(self, start: int, end: int, node: Node) -> None:
        text = self._source[start:end]
        inner = unescaped(text, keep=b"$").encode() if node.type == "string" else text
        # After escapes have gone, no place in the text is exact.
        base = self._base + start if inner == text else NOWHERE
        self._read_inside(inner, base, self._base_line + self._source[:start].count(b"\n"), self._line_of_text)

    def _read_inside(self, text: bytes, *place: int) -> None:
        if len(self._context) >= _DEEPEST:
            return
        self._variables.effort.spend(len(text))
        before = self._source, self._base, self._base_line, self._line_of_text
        self._source, (self._base, self._base_line, self._line_of_text) = text, place
        with self._inside("inner script"):
            self._walk(parsed(text))
        self._source, self._base, self._base_line, self._line_of_text = before

    def _redirected(self, node: Node) -> None:
        body = node.child_by_field_name("body")
        heres = [child for child in node.named_children if child.type == "heredoc_redirect"]
        files = [c for one in (node, *heres) for c in one.named_children if c.type == "file_redirect"]
        texts = [next((child for child in one.named_children if child.type == "heredoc_body"), None) for one in heres]
        here = next((text for text in texts if text is not None), None)
        if body is None:
            return
        if here is not None:
            marks = [text_of(child) for child in heres[0].named_children if child.type == "heredoc_start"]
            quoted = bool(marks) and marks[0][:1] in ("'", '"', "\\")
            for file in files:
                if (target := file.child_by_field_name("destination")) is not None:
                    content = (
                        text_of(here) if quoted else self._variables.quoted(here, here.start_byte, here.end_byte).text
                    )
                    name = "".join(self._variables.expand(target)[0])
                    self._script.files[name] = content
                    if name.endswith((".sh", ".slurm", ".sbatch")):
                        self._inner(here.start_byte, here.end_byte, here)
        redirects = [text_of(file) for file in files]
        if body.type == "command":
            self._command(body, redirects, here)
        else:
            self._walk(body)
        # `cmd <<EOF | tee log`: the pipe belongs to the here-document's node.
        for one in heres:
            for child in one.named_children:
                if child.type in ("pipeline", "command", "list"):
                    self._walk(child)

    def _loop(self, node: Node) -> None:
        variable, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if variable is None or body is None:
            return
        name = text_of(variable)
        values, unknown = list[str](), list[str]()
        for child in node.children_by_field_name("value"):
            fields, missing = self._variables.expand(child)
            values += fields
            unknown += missing
        if unknown or not 0 < len(values) <= _MOST_TURNS:
            with self._inside(f"for {name}"):
                self._variables.values.pop(name, None)
                self._walk(body)
            return
        for value in values:
            self._variables.values[name] = Value((value,))
            with self._inside(f"for {name}={value}"):
                self._walk(body)

    def _if(self, node: Node) -> None:
        """The branch whose condition holds, or all before it that cannot be decided."""
        branches, conditions = list[list[Node]](), list[Node]()
        for clause in (node, *(child for child in node.named_children if child.type in ("elif_clause", "else_clause"))):
            then = next((child.start_byte for child in clause.children if child.type == "then"), clause.start_byte)
            own = [child for child in clause.named_children if child.type not in ("elif_clause", "else_clause")]
            tests = [child for child in own if child.start_byte < then]
            truth = None if len(tests) > 1 else self._variables.truth(tests[0]) if tests else True
            if truth is not False:
                branches.append(own[len(tests) :])
                conditions += tests
            if truth:
                break
        if len(branches) == 1 and truth:
            for child in branches[0]:
                self._walk(child)
        else:
            self._either(branches, "if", conditions)

    def _either(self, branches: Sequence[Sequence[Node]], kind: str, conditions: Sequence[Node]) -> None:
        """All branches; of what several of them set, the first counts."""
        first: dict[str, Value] = {}
        before = dict(self._variables.values)
        for branch in branches:
            with self._inside(kind):
                for child in branch:
                    self._walk(child)
            first = {name: value for name, value in self._variables.values.items() if before.get(name) != value} | first
        self._variables.values |= first
        if first and conditions:
            self._note(conditions[0], f"cannot be decided here: {join_first([*first], 3)} as if it held")

    def _case(self, node: Node) -> None:
        value = node.child_by_field_name("value")
        fields, unknown = self._variables.expand(value) if value is not None else ([], ["?"])
        items = [child for child in node.named_children if child.type == "case_item"]
        branches = []
        for item in items:
            patterns = item.children_by_field_name("value")
            body = [child for child in item.named_children if child not in patterns]
            branches.append(body)
            texts = [text_of(one).strip("'\"") for one in patterns]
            if not unknown and any(fnmatch.fnmatchcase("".join(fields), text) for text in texts):
                for child in body:
                    self._walk(child)
                return
        if unknown:
            self._either(branches, "case", [value] if value is not None else [])

    def _list(self, node: Node) -> None:
        if len(node.named_children) < 2:
            return self._walk_children(node)
        left, right = node.named_children[0], node.named_children[-1]
        with_and = any(child.type == "&&" for child in node.children)
        truth = self._variables.truth(left)
        if truth is None and left.type == "list" and not with_and:
            return self._either([[left], [right]], "if", [left])
        self._walk(left)
        if left.type in ("test_command", "negated_command", "compound_statement") and truth is None:
            self._either([[right]], "if", [left])
        elif truth is None or truth is with_and:
            self._walk(right)
        return None

    # Variables

    def _assign(self, node: Node, exports: bool = False) -> None:
        if (found := self._variables.assignment(node)) is None:
            return
        name, value = found
        if (array := node.child_by_field_name("value")) is not None and array.type == "array":
            self._script.arrays.append(tuple(word for child in array.named_children for word in self._words(child)))
        self._variables.values[name] = value
        if exports:
            self._exported.add(name)
        if name in self._exported:
            self._script.exports[name] = self._word(node, value)

    def _declare(self, node: Node) -> None:
        keyword = text_of(node.children[0])
        exports = keyword == "export" or any(re.match(r"-\w*x", text_of(child)) for child in node.named_children)
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._assign(child, exports)
            elif child.type == "variable_name" and exports:
                name = text_of(child)
                self._exported.add(name)
                if name in self._variables.values:
                    self._script.exports[name] = self._word(child, self._variables.values[name])

    # Words

    def _words(self, node: Node) -> Iterator[Word]:
        if node.type == "command_name":
            node = node.named_children[0] if node.named_children else node
        fields, unknown = self._variables.expand(node)
        for text in fields:
            yield self._word(node, Value((text,), tuple(name for name in dict.fromkeys(unknown) if name in text)))

    def _joined(self, word: Word, node: Node) -> Word:
        """One word of two: the grammar ends it behind the dollar of `$A/b-$C/d`."""
        name, rest = re.match(r"\w*", text_of(node))[0], text_of(node)  # type: ignore[index]
        value = self._variables.values.get(name, Value((f"${name}",), (f"${name}",)))
        text = word.text[:-1] + value.text + rest.removeprefix(name)
        return Word(text, word.raw + rest, word.start, self._base + node.end_byte, word.line,
                    (*word.unknown, *value.unknown))  # fmt: skip

    def _word(self, node: Node, value: Value) -> Word:
        start, end = self._base + node.start_byte, self._base + node.end_byte
        return Word(value.text, text_of(node), start, end, self._line(node), tuple(value.unknown))

    # Places

    def _line(self, node: Node) -> int:
        return self._line_of_text or self._base_line + node.start_point[0] + 1

    def _note(self, node: Node, why: str) -> None:
        # A backslash at the end of a file is an error without text.
        if text := " ".join(text_of(node).split()):
            self._script.notes.append(Left(self._line(node), shortened(text, 60), why, "check it by hand"))

    @contextmanager
    def _inside(self, what: str) -> Iterator[None]:
        before, self._context = self._context, (*self._context, what)
        try:
            yield
        finally:
            self._context = before
