"""Finds where a bash script has a word: in a command, an array, a text of arguments, a here-document.

A word is `key=value`, `--flag=value`, `--flag value` or `NAME=value`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tree_sitter import Node

from common.errors import UserError
from common.messages import shortened
from workflow.launch_scripts.expansion import text_of
from workflow.launch_scripts.script import Script, ShellCommand, Word

_TEXTS = ("string", "raw_string", "heredoc_body", "ansi_c_string")
_RUN_TEXT = ("-c", "-lc", "-ic", "eval")  # what follows is a script
_EXPANSIONS = ("simple_expansion", "expansion", "command_substitution")
# Nodes that are a word of a command, or that begin one or continue it.
_WORDS = (
    *("word", "concatenation", "variable_assignment", "variable_name", "command_name", "string", "raw_string"),
    *("number", "ansi_c_string", "translated_string", "arithmetic_expansion", "process_substitution", "$"),
    *("extglob_pattern", "brace_expression", *_EXPANSIONS),
)
_NO_VALUE = re.compile(rb"-\D|-$")  # the next flag
_END = re.compile(rb"[\s;&|<>()`}]|\\\n\s|$")
# Of a word inside a longer text. What stands behind it ends a word both where the text is a script of its own and where
# it is split at blanks only.
_VALUE = re.compile(
    rb"""(?:'[^'\s]*'|\\?"[^"\s\\]*\\?"|\\?\$\{[^{}\s]*\}|\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`|\\?\$(?![({])"""
    rb"""|\([^()\s]*\)|[^\s"'\\$`;&|<>()])*"""
)
_END_IN_TEXT = re.compile(rb"""\s|\\\n\s|\)|[;&|<>]+(\s|$)|$""")
_ALL = re.compile(r"\$[@*]|\$\{[@*]|\[[@*]\]")  # `$@`, and an array's elements
_ALL_IN_QUOTES = re.compile(_ALL.pattern.replace("*", ""))
_BRACES = re.compile(r"\{[^{}\s]*(,|\.\.)[^{}\s]*\}")


class Occurrence(NamedTuple):
    """Where a script has a word."""

    start: int
    end: int
    line: int
    text: str
    name: str
    """Its name as written, such as `+key` or `--flag`."""
    separator: str
    """`=`, or a blank for `--flag value`."""
    in_text: bool
    """Whether it is a part of a longer text, where nothing can be quoted."""
    has_value: bool = True
    doubt: str = ""
    """What is taken for its value without being certain."""


def places_of(
    script: Script, root: Node, name: str, command: ShellCommand | None
) -> tuple[list[Occurrence], list[Occurrence]]:
    """Where a script has a word of this name: in its training command and in variables, and where in other commands.

    Without one in the training command or a variable all places count. A name without dashes is also found as a flag,
    if the script has it in no other form.
    """
    plain = name.lstrip("+-")
    forms = [rf"\+{{0,2}}{re.escape(plain)}", rf"--?{re.escape(plain).replace('_', '[_-]')}"]
    spans = [(one.words[0].start, one.end) for one in script.commands if one.words]
    own = (command.words[0].start, command.end) if command is not None and command.words else None
    for form in forms[1:] if name.startswith("-") else forms:
        found = list(_places(script, root, form, command))
        others = [at for at in found if any(start <= at.start < end for start, end in spans if (start, end) != own)]
        # A command around the training one (`docker run ... bash -c "..."`) has its words, too.
        others = [at for at in others if own is None or not own[0] <= at.start < own[1]]
        if len(others) < len(found):
            return [at for at in found if at not in others], others
        if found:
            return found, []
    return [], []


def lines_that_set(script: Script, root: Node, name: str) -> list[int]:
    """Where a script sets a variable of this name, and no word has its value: `read`, `for`, `NAME+=`."""
    lines = [one.line for one in script.commands if name in _targets([word.text for word in one.words])]
    nodes = [root]
    for node in nodes:
        nodes += node.named_children
        target = None
        if node.type == "for_statement":  # also `select`
            target = node.child_by_field_name("variable")
        elif node.type == "variable_assignment":  # `NAME+=` or `NAME[0]=`, as `NAME=` is found as a word
            target = node.child_by_field_name("name")
        if target is not None and text_of(target).partition("[")[0] == name:
            lines.append(node.start_point[0] + 1)
    return sorted(lines)


def _targets(words: Sequence[str]) -> Sequence[str]:
    """The words of a command among which are the names of the variables that it sets."""
    match words:
        case ["read" | "mapfile" | "readarray" | "getopts" | "unset", *rest]:
            return rest
        case ["printf", "-v", name, *_]:
            return [name.partition("[")[0]]
        case ["builtin" | "command", *rest]:
            return _targets(rest)
    return ()


def _places(script: Script, root: Node, form: str, command: ShellCommand | None) -> Iterator[Occurrence]:
    source = script.text.encode()
    blank = r"|(?:[ \t]|\\\n)+" if form.startswith("-") else ""
    for match in re.finditer(rf"(?<![\w.+$/{{-])({form})(={blank})".encode(), source):
        start, end = match.span()
        node = root.descendant_for_byte_range(start, start + 1)
        text = node
        while text is not None and text.type not in (*_TEXTS, "comment"):
            text = text.parent
        if node is None or (text is not None and text.type == "comment"):
            continue
        name, separator = match[1].decode(), "=" if match[2] == b"=" else " "
        line = source.count(b"\n", 0, start) + 1
        if text is not None and not _is_one_word(text, start, command):
            place = Occurrence(start, end, line, "", name, separator, in_text=True)
            limit = text.end_byte - (text.type != "heredoc_body")
            yield _in_text(source[:limit], end, place, bool(_END.match(source, text.end_byte)))
            continue
        word = _word_at(text or node)
        start, flag_end = _span(source, word, line)
        # Of `ARGS="--flag=value"` the variable is split into words later, where no quotes count.
        in_text = word.parent is not None and word.parent.type == "variable_assignment"
        place = Occurrence(start, flag_end, line, "", name, separator, in_text)
        if separator == " ":
            place = _with_value(script, root, place, end)
        elif _expands(word):
            place = _of_one_word(script, place, source[end:flag_end].decode())
        yield place._replace(text=source[start : place.end].decode())


def _is_one_word(text: Node, start: int, command: ShellCommand | None) -> bool:
    """Whether a quoted text that begins with a word is that word, and no list of words or a script."""
    if text.start_byte + 1 != start or text.type not in ("string", "raw_string"):
        return False
    words = command.words if command is not None else ()
    is_argument = any(word.start == text.start_byte for word in words) and not {*_RUN_TEXT} & {w.text for w in words}
    is_item = text.parent is not None and text.parent.type == "array"
    return is_argument or is_item or not re.search(r"\s", text_of(text))


def _word_at(node: Node) -> Node:
    """The whole word that begins with a node."""
    while (above := node.parent) is not None and above.start_byte == node.start_byte and above.type in _WORDS:
        node = above
    return node


def _span(source: bytes, node: Node, line: int) -> tuple[int, int]:
    """Where a word begins and ends: the grammar ends some in their middle (`$A/b-$C/d`)."""
    last: Node | None = node
    end = node.end_byte
    while last is not None and (last := last.next_sibling) is not None and last.start_byte == end:
        if last.type not in _WORDS:
            break
        end = last.end_byte
    if not _END.match(source, end):
        raise UserError(f"line {line}: it is not clear where {shortened(text_of(node), 60)} ends; put it in quotes")
    return node.start_byte, end


def _in_text(source: bytes, end: int, place: Occurrence, is_whole: bool) -> Occurrence:
    """A word inside a longer text, which ends where the source does; `is_whole`: its last word ends there, too."""
    start, found = place.start, _VALUE.match(source, end)
    value = found[0] if found is not None else b""
    stop = end + len(value)
    if not _END_IN_TEXT.match(source, stop) or (stop == len(source) and not is_whole):
        raise UserError(
            f"line {place.line}: {place.name} is part of a longer text, where it is not clear where its value ends; "
            "write the arguments of the training command as an array, ARGS=(key=value ...)"
        )
    many = (_ALL_IN_QUOTES if value.startswith(b'"') else _ALL).search(value.decode())
    if place.separator == " " and (_NO_VALUE.match(value) or many or not value):
        stop = start + len(place.name.encode())
        return place._replace(end=stop, text=source[start:stop].decode(), has_value=False)
    splits = place.separator == " " and re.match(rb"\\?[$`]", value)
    doubt = _taken_for_one(place, value.decode()) if splits else ""
    return place._replace(end=stop, text=source[start:stop].decode(), doubt=doubt)


def _with_value(script: Script, root: Node, place: Occurrence, at: int) -> Occurrence:
    """`--flag` with the word behind it, at a place, if that is its value; a `UserError` if it may be several."""
    source = script.text.encode()
    following = root.descendant_for_byte_range(at, at + 1)
    node = _word_at(following) if following is not None else None
    alone = place._replace(has_value=False)
    if node is None or node.type not in _WORDS or _NO_VALUE.match(source[at : at + 2]):
        return alone
    start, end = _span(source, node, place.line)
    raw = source[start:end].decode()
    if not _may_split(node):
        return place._replace(end=end)
    behind = re.sub(rb"^(?:[ \t]|\\\n)+", b"", source[end:])
    is_last = not behind or behind[:1] in b"\n;&|<>)#" or _NO_VALUE.match(behind)
    groups = _groups(script, place.start)
    found = {_is_value(place, raw, [one for one in words if one.start == start], bool(is_last)) for words in groups}
    if len(found) > 1:
        raise _several(place, raw, "is its value in one place and not in another")
    is_value, doubt = next(iter(found)) if found else _is_value(place, raw, None, bool(is_last))
    doubt = "" if node.type == "concatenation" and node.children[0].type not in _EXPANSIONS else doubt
    return place._replace(end=end, doubt=doubt) if is_value else alone


def _of_one_word(script: Script, place: Occurrence, raw: str) -> Occurrence:
    """`key=$VALUE`, with a doubt if it may be several words; a `UserError` if it is."""
    for words in _groups(script, place.start):
        own = [one for one in words if one.start == place.start]
        if len(own) > 1:
            raise _several(place, raw, f"is {len(own)} words")
        if own[0].unknown:
            return place._replace(doubt=_taken_for_one(place, raw))
    return place


def _groups(script: Script, start: int) -> list[Sequence[Word]]:
    """The words of each command and array that has one from this place."""
    groups = [one.words for one in script.commands] + [*script.arrays]
    return [words for words in groups if any(word.start == start for word in words)]


def _expands(node: Node) -> bool:
    """Whether a word has an expansion outside quotes, which bash may split."""
    return node.type in _EXPANSIONS or (node.type == "concatenation" and any(map(_expands, node.children)))


def _may_split(node: Node) -> bool:
    """Whether bash may make several words, or none, of a word."""
    if node.type == "string":
        return bool(_ALL_IN_QUOTES.search(text_of(node)))
    if node.type in _EXPANSIONS:
        return True
    if node.type in ("word", "concatenation") and (_BRACES.search(text_of(node)) or re.search(r"[*?]", text_of(node))):
        return True
    return node.type == "concatenation" and any(_may_split(child) for child in node.children)


def _is_value(place: Occurrence, raw: str, words: Sequence[Word] | None, is_last: bool) -> tuple[bool, str]:
    """Whether the word behind a flag is its value, and a doubt; `words` is what it becomes, None if that is unknown."""
    if _BRACES.search(raw):
        raise _several(place, raw, "is several words")
    if words is not None and not any(word.unknown for word in words):
        if words and re.match(r"-\D", words[0].text):
            return False, ""
        if len(words) == 1:
            return True, _taken_for_one(place, raw) if re.search(r"[*?]", words[0].text) else ""
        if not words and is_last:
            return False, ""
        raise _several(place, raw, f"is {len(words)} words" if words else "is no word")
    if _ALL.search(raw):
        raise _several(place, raw, "may be several words or none")
    return True, _taken_for_one(place, raw)


def _taken_for_one(place: Occurrence, raw: str) -> str:
    return f"line {place.line}: {shortened(raw, 40)} is taken for the value of {place.name}, as one word; check it"


def _several(place: Occurrence, raw: str, why: str) -> UserError:
    return UserError(
        f"line {place.line}: {shortened(raw, 40)} behind {place.name} {why}; write {place.name} with one value, or in "
        "quotes, in the script"
    )
