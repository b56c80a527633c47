"""Says what a copy of a launch script has instead of the words that an arm varies.

A word is `key=value`, `--flag=value`, `NAME=value`, or `1=value` for the script's first argument. It is replaced
wherever the script has it. A word that the script lacks is appended to the training command. A value is text, in which
`$NAME` is a variable of the script; `{value}` at its beginning is what the script has there.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

from tree_sitter import Node

from common.errors import UserError
from trainers.command.driver import SCRIPT_PATH, VARIABLE
from workflow.launch_scripts.expansion import parsed
from workflow.launch_scripts.places import Occurrence, lines_that_set, places_of
from workflow.launch_scripts.script import Script, ShellCommand, training_command
from workflow.launch_scripts.shell import read_script

_MOST_BYTES = 200_000
# ppo_mini_batch_size and ppo_micro_batch_size (0.87) are two settings; a letter more or less is a slip.
_ALIKE, _SHORTEST_MEANT, _SHORTEST_SLIP = 0.93, 5, 4
_LONGEST_OWN = len("${BASH_SOURCE[0]}")
OWN_VALUE = "{value}"
_VARIABLE_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
_NAME = re.compile(r"[A-Za-z_]\w*")
_RUNS_TEXT = re.compile(r"(^|[\s/])(ba|da|z)?sh( -\S+)* -\w*c( |$)")
_PLAIN = re.compile(r"[\w.,:/@%+=\[\]{}-]*")


class Edit(NamedTuple):
    """What a copy has instead of some bytes of the script."""

    start: int
    end: int
    text: str


@dataclass
class Changes:
    """What the copy of a script has, and a sentence for each word."""

    edits: list[Edit] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    """All arguments of the script."""
    environment: dict[str, str] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    misspelt: dict[str, str] = field(default_factory=dict)
    """A word that the script lacks -> the one that it probably means."""


def changes_of(text: str, words: Sequence[str], arguments: Sequence[str] = ()) -> Changes:
    """The changes that give a script these words; `UserError` for a word that has no place."""
    found = Changes(arguments=[*arguments])
    named = [word.partition("=") for word in words]
    for name, equals, value in named:
        if not equals or not name.lstrip("+-"):
            raise UserError(f"{name!r} is no word to vary: write key=value, --flag=value or NAME=value")
        if OWN_VALUE in value[1:]:
            raise UserError(f"{name}={value}: {OWN_VALUE}, the script's own value, stands at the beginning only")
        if name.isdigit() and int(name):
            found.arguments += [""] * (int(name) - len(found.arguments))
            found.arguments[int(name) - 1] = value
            found.sentences.append(f"argument {name} of the script is {value}")
            if VARIABLE.search(value):
                found.doubts.append(f"argument {name} is {value} as it stands: a script's arguments are not expanded")
    script, root = read_script(text, found.arguments), parsed(text)
    command = training_command(script)
    for name, _, value in named:
        if name.isdigit():
            continue
        places, others = places_of(script, root, name, command)
        lines = lines_that_set(script, root, name)
        if places:
            if later := [line for line in lines if line > max(place.line for place in places)]:
                found.doubts.append(f"line {later[0]} sets {name} again, below the place that is replaced; check it")
            _replace(found, name, value, places, others)
        else:
            if lines:
                raise UserError(
                    f"line {lines[0]} sets {name}, and a copy cannot have another value there; write {name}=VALUE "
                    "instead, on a line of its own"
                )
            _append(found, script, command, name, value)
    # A replaced word may hold the script's path.
    own = _own_path(root)
    found.edits += [one for one in own if not any(at.start <= one.start < at.end for at in found.edits)]
    return found


def _replace(found: Changes, name: str, value: str, places: Sequence[Occurrence], others: Sequence[Occurrence]) -> None:
    """Give the places of a word its value."""
    found.edits += [_edit(place, value) for place in places]
    lines = _lines(list(dict.fromkeys(place.line for place in places)))
    left = f"; other commands keep theirs: {_lines(sorted({at.line for at in others}))}" if others else ""
    if value.startswith(OWN_VALUE):
        found.sentences.append(f"{name} keeps its value and gets {value.removeprefix(OWN_VALUE)} in {lines}{left}")
        return
    how = "is replaced" if len(places) == 1 else f"occurs {len(places)} times: all are replaced"
    found.sentences.append(f"{name} {how} in {lines}{left}")
    found.doubts += dict.fromkeys(place.doubt for place in places if place.doubt)


def _lines(numbers: Sequence[int]) -> str:
    return f"line{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def script_facts(settings: Mapping[str, Any], script: Path, names: Mapping[str, str]) -> dict[str, Any]:
    """What a run's specification says of its script: the hash of its text, and the changes for the run's words.

    The text itself stays where it is: it may contain keys. `names` are those in braces in a word's value.
    """
    text = read_text(script)
    words = list(settings["words"])
    for name, value in names.items():
        words = [word.replace(f"{{{name}}}", value) for word in words]
    changes = changes_of(text, words, settings["arguments"])
    return {
        "words": words,
        "arguments": changes.arguments,
        "environment": changes.environment,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "edits": [list(edit) for edit in sorted(changes.edits)],
    }


def read_text(script: Path) -> str:
    """A bash script's text; `UserError` if it is missing or something else."""
    try:
        if script.stat().st_size > _MOST_BYTES:
            raise UserError(f"{script} has more than {_MOST_BYTES:,} bytes; give the script that starts the training")
        text = script.read_bytes().decode()
    except UnicodeDecodeError:
        raise UserError(f"{script} is no bash script: it is not UTF-8 text; give the script that starts it") from None
    except OSError as error:
        raise UserError(f"{script}: {error.strerror} (seen from {Path.cwd()}); give a bash script") from None
    first = text.partition("\n")[0]
    if script.suffix == ".py" or (first.startswith("#!") and not re.search(r"\b(ba|da)?sh\b", first)):
        raise UserError(
            f"{script} is no bash script ({first[:40] if first.startswith('#!') else 'its name ends in .py'}); write a "
            f'script of one line with its command, such as: python {script} "$@"'
        )
    if "\r\n" in text:
        raise UserError(f"{script} has the line ends of Windows, which bash refuses; sed -i 's/\\r$//' {script}")
    return text


def _edit(place: Occurrence, value: str) -> Edit:
    """What a place has with a value. The script's own value stays where it is, and keeps its meaning."""
    if not value.startswith(OWN_VALUE):
        return Edit(place.start, place.end, f"{place.name}{place.separator}{_as_word(place, value)}")
    if not place.has_value or place.text.partition("=")[2].startswith("("):
        raise UserError(f"line {place.line}: {place.name} has no single value there, which {OWN_VALUE} stands for")
    more = value.removeprefix(OWN_VALUE)
    if re.search(r"\$\w+$", place.text) and re.match(r"\w", more):
        # `_new` behind `$USER` would make it another variable.
        if place.in_text:
            raise UserError(f"line {place.line}: put braces around the variable at the end of {place.text[:60]}")
        return Edit(place.end, place.end, f"''{_quoted(more)}")
    return Edit(place.end, place.end, _as_word(place, more) if more else "")


def _as_word(place: Occurrence, value: str) -> str:
    if not place.in_text:
        return _quoted(value)
    if not _PLAIN.fullmatch(value):
        raise UserError(
            f"line {place.line}: {place.name} is part of a longer text, where {value!r} cannot be quoted; write the "
            "arguments of the training command as an array, ARGS=(key=value ...)"
        )
    return value


def _quoted(text: str) -> str:
    """A text as one word of bash, in which only variables are expanded."""
    if not VARIABLE.search(text):
        return shlex.quote(text)
    escaped = re.compile(rf"""({VARIABLE.pattern})|[\\"`$]""")
    return '"' + escaped.sub(lambda found: found[0] if found[1] else f"\\{found[0]}", text) + '"'


def _append(found: Changes, script: Script, command: ShellCommand | None, name: str, value: str) -> None:
    """Give a word that the script lacks to its environment, its arguments, or its training command."""
    if value.startswith(OWN_VALUE):
        raise UserError(f"{name} is not in the script, and {OWN_VALUE} stands for the value that it has there")
    if _VARIABLE_NAME.fullmatch(name):
        own = re.findall(r"\$\{?([A-Z_][A-Z0-9_]*)|\b([A-Z_][A-Z0-9_]*)=", script.text)
        if meant := next((one for pair in own for one in pair if is_slip(name, one)), ""):
            found.misspelt[name] = meant
        found.environment[name] = value
        found.sentences.append(f"{name} is set in the environment, as the script does not set it")
        return
    if command is None:
        raise UserError(f"{name} is not in the script, and no command in it looks like the training; write it there")
    words = [word.text for word in command.words]
    if meant := _meant(name, words):
        found.misspelt[name] = meant
    is_flag = not name.startswith("-") and _NAME.fullmatch(name) and any(word.startswith("--") for word in words)
    with_equals = any(re.match(r"[+~]*[\w.@/]+=", word) for word in words[1:])
    form = f"--{name}={value}" if is_flag and not with_equals else f"{name}={value}"
    where = f"line {command.line} ({' '.join(words[:4])[:60]})"
    # An argument is not expanded.
    if command.passes_arguments and not VARIABLE.search(value) and _adds_only(script, found.arguments, form, words):
        found.arguments.append(form)
        found.sentences.append(f'{name} is not in the script: it is given as an argument, which {where} gets by "$@"')
        return
    in_text = "inner script" in command.context
    # Behind `bash -c "$*"` it would be the shell's `$0`.
    is_lost = not in_text and _RUNS_TEXT.search(" ".join(words))
    if is_lost or command.end < 0 or (in_text and not _PLAIN.fullmatch(form)):
        raise UserError(
            f"{name} is not in the script, and cannot be added to the quoted command of {where}; write it there"
        )
    more = f" {form if in_text else _quoted(form)}"
    before = next((edit for edit in found.edits if edit.start == edit.end == command.end), None)
    if before is not None:
        found.edits.remove(before)
    found.edits.append(Edit(command.end, command.end, (before.text if before else "") + more))
    found.sentences.append(f"{name} is not in the script: it is appended to the training command in {where}")


def _meant(name: str, words: Sequence[str]) -> str:
    """The word of a training that a name which it lacks is the end of, or misspells in one part; empty if none."""
    parts = name.lstrip("+-").split(".")
    for word in words:
        known = word.lstrip("+-").partition("=")[0]
        others = known.split(".")
        if not (word.startswith("-") or "=" in word) or len(known) < _SHORTEST_MEANT or others == parts:
            continue
        end = others[-len(parts) :]
        differing = [pair for pair in zip(parts, end, strict=False) if pair[0] != pair[1]]
        if end == parts or (len(end) == len(parts) and len(differing) == 1 and is_slip(*differing[0])):
            return known
    return ""


def is_slip(name: str, known: str) -> bool:
    """Whether a name is probably a known one with a letter more, less, or in another place, or a long one with another.

    Of short names with another letter both may be right (`top_p`, `top_k`); so may two with other digits.
    """
    if name == known or max(len(name), len(known)) < _SHORTEST_SLIP:
        return False
    if SequenceMatcher(None, name, known).ratio() >= _ALIKE:
        return re.sub(r"\d", "", name) != re.sub(r"\d", "", known)
    start = next((at for at, pair in enumerate(zip(name, known, strict=False)) if pair[0] != pair[1]), None)
    if start is None:  # a letter more at the end
        return abs(len(name) - len(known)) == 1 and not (name + known)[-1].isdigit()
    a, b = name[start:], known[start:]
    return a[1:] == b or a == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])


def _adds_only(script: Script, arguments: Sequence[str], word: str, before: Sequence[str]) -> bool:
    """Whether a further argument of the script only adds a word to its training: it may be the script's `$1`, too."""
    command = training_command(read_script(script.text, [*arguments, word]))
    return command is not None and sorted(one.text for one in command.words) == sorted([*before, word])


def _own_path(root: Node) -> list[Edit]:
    """The script's own path, `$0` and `${BASH_SOURCE[0]}`, by a variable: the copy lies elsewhere."""
    edits, nodes = [], [(root, "")]
    for node, above in nodes:
        # tree-sitter finds a node's parent by going through all nodes from the root.
        nodes += [(child, node.type) for child in node.children]
        if node.end_byte - node.start_byte > _LONGEST_OWN:
            continue
        text = (node.text or b"").decode(errors="replace")
        if node.type == "simple_expansion" and text in ("$0", "$BASH_SOURCE"):
            edits.append(Edit(node.start_byte, node.end_byte, f"${{{SCRIPT_PATH}}}"))
        # The 0 of `${X:-0}` is a word.
        is_name = above == "expansion" and node.type in ("variable_name", "subscript")
        if is_name and text in ("0", "BASH_SOURCE", "BASH_SOURCE[0]"):
            edits.append(Edit(node.start_byte, node.end_byte, SCRIPT_PATH))
    return edits
