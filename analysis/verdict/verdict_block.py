"""Makes the lines of a verdict, and writes them for the terminal and Markdown."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from markupsafe import Markup, escape

from analysis.verdict.arm_verdict import ArmVerdict
from common.messages import colour_wanted, print_message
from common.shown import own_stream, shown

MOST_CAVEATS = 4
# By kind of caveat; the section of the page that has its details.
SYMBOLS = {"terms": "≠", "gate": "✗", "spread": "±", "estimates": "⇄", "data": "?"}
SECTIONS = {"terms": "ledger", "gate": "gate", "spread": "speed", "estimates": "steps"}
_YELLOW, _PLAIN = "\x1b[33m", "\x1b[0m"
_COLOURS = dict.fromkeys(SYMBOLS, _YELLOW) | {
    "answer": "\x1b[1m",
    "gate": "\x1b[31m",
    "settle": "\x1b[36m",
    "rests-on": "\x1b[2m",
}
_WIDTH = 80
_LONGEST_UNBROKEN = 24  # characters; a longer text does not fit a telephone's line


@dataclass(frozen=True)
class Line:
    """A line of a verdict: one of rendering.py's FIRST_LINES, a kind of caveat, `more` or `settle`."""

    kind: str
    symbol: str
    text: str


def lines_of(verdict: ArmVerdict, most: int | None = MOST_CAVEATS) -> list[Line]:
    """The lines of a verdict, with the `most` harmful caveats; None: with all."""
    found = [Line("answer", "", verdict.sentence or f"{verdict.arm} vs {verdict.baseline}: {verdict.words}.")]
    found += [Line("difference", "", verdict.difference)] if verdict.difference else []
    found += [Line("per-gpu", "", one) for one in verdict.per_gpu]
    found += [Line("mismatch", "", verdict.mismatch)] if verdict.mismatch else []
    found += [Line("rests-on", "·", f"{verdict.basis}.")] if verdict.basis else []
    found += [Line(one.kind, SYMBOLS[one.kind], one.text) for one in verdict.caveats[:most]]
    if more := len(verdict.caveats[most:]) if most else 0:
        found.append(Line("more", "+", f"And {more} more in the report and in --json."))
    if verdict.settle:
        first, *others = verdict.settle
        text = (
            f"All of these would resolve it: {'; '.join(verdict.settle)}." if others else f"{first} would resolve it."
        )
        found.append(Line("settle", "→", text[0].upper() + text[1:]))
    return found


def verdict_text(verdicts: Sequence[ArmVerdict], width: int = _WIDTH, colour: bool = False) -> str:
    """The lines for a terminal: wrapped, and in colour on request."""
    fill = partial(textwrap.fill, width=width, break_long_words=False, break_on_hyphens=False)
    blocks = []
    for verdict in verdicts:
        texts = []
        for line in lines_of(verdict):
            text = fill(shown(f"{line.symbol} {line.text}".strip()), subsequent_indent="  " if line.symbol else "")
            texts.append(f"{_COLOURS[line.kind]}{text}{_PLAIN}" if colour and line.kind in _COLOURS else text)
        blocks.append("\n".join(texts))
    return "\n\n".join(blocks)


def verdict_markdown(verdicts: Sequence[ArmVerdict], most: int | None = MOST_CAVEATS) -> str:
    """The lines for a pull request or a job summary: the answer bold, then a list."""
    blocks = []
    for verdict in verdicts:
        first, *others = lines_of(verdict, most)
        items = [f"- {line.symbol.replace('·', '')} {escaped(line.text)}".replace("-  ", "- ") for line in others]
        blocks.append("\n".join([f"**{escaped(first.text)}**", "", *items]).rstrip())
    return "\n\n".join(blocks)


def unbroken(text: str) -> Markup:
    """A text for the page in which no line breaks after a hyphen of a name, or between a number and its unit."""

    def kept(match: re.Match[str]) -> str:
        return f'<span class="whole">{match[0]}</span>' if len(match[0]) <= _LONGEST_UNBROKEN else match[0]

    return Markup(re.sub(r"[\w.]+(?:-[\w.]+)+|\b[\d.,]+ s\b", kept, str(escape(text))))


def print_verdict(verdicts: Sequence[ArmVerdict], after: Sequence[str] = ()) -> None:
    """Prints the lines and others after them: in colour on a terminal without NO_COLOR, and no wider than it."""
    colour = colour_wanted()
    width = min(shutil.get_terminal_size().columns, 100) if colour else _WIDTH
    print(verdict_text(verdicts, width, colour), file=own_stream(sys.stdout))
    for line in after:
        print(textwrap.fill(shown(line), width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def add_to_job_summary(make: Callable[[], str]) -> None:
    """Appends Markdown to the summary of a GitHub Actions job, if GITHUB_STEP_SUMMARY names its file."""
    if name := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(name).open("a", encoding="utf-8") as file:
                file.write(f"{make()}\n\n")
        except OSError as error:
            print_message(f"cannot add the verdict to the job summary: {error}")


def escaped(text: str) -> str:
    """A text from the data for a line or a table cell of Markdown, in which nothing of it is live.

    GitHub looks for names of its users also behind a backslash.
    """
    text = re.sub(r"([\\`*_\[\]<>|#&]|(?<=www)\.|:(?=//))", r"\\\1", shown(text.replace("\n", " ")))
    return re.sub(r"@(?=\w)", "@&#8203;", text)
