"""Renders the verdicts as one block: for the terminal, Markdown, and the page."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from markupsafe import Markup, escape

from analysis.verdict.arm_verdict import ArmVerdict, Ratio, ratio_text
from analysis.verdict.caveats import MOST_NAMES
from common.messages import colour_wanted, join_first, print_message
from common.shown import own_stream, shown

MOST_CAVEATS = 5
SYMBOLS = {"terms": "≠", "gate": "✗", "spread": "±", "estimates": "⇄", "data": "?"}
_BOLD, _PLAIN, _YELLOW = "\x1b[1m", "\x1b[0m", "\x1b[33m"
_COLOURS = dict.fromkeys(SYMBOLS, _YELLOW) | {"gate": "\x1b[31m", "settle": "\x1b[36m", "rests-on": "\x1b[2m"}
_WIDTH = 80
_LONGEST_UNBROKEN = 24  # characters; a longer text does not fit a telephone's line


@dataclass(frozen=True)
class _Item:
    """A line of the block under the verdict; `section` is the section that it may link to."""

    kind: str
    symbol: str
    text: str
    section: str = ""


def verdict_text(verdicts: Sequence[ArmVerdict], width: int = _WIDTH, colour: bool = False) -> str:
    """The block for a terminal: wrapped, and in colour on request."""
    fill = partial(textwrap.fill, width=width, break_long_words=False, break_on_hyphens=False)
    lines = []
    for verdict in verdicts:
        # The claim may take two lines.
        line, claim = (
            fill(shown(f"{_claim(verdict)} {ratio_sentences(verdict)}".strip())),
            textwrap.fill(shown(_claim(verdict)), width),
        )
        bold = colour and line.startswith(claim)
        lines.append(f"{_BOLD}{claim}{_PLAIN}{line[len(claim) :]}" if bold else line)
        for item in _items(verdict):
            text = fill(shown(f"{item.symbol} {item.text}"), subsequent_indent="  ")
            lines.append(f"{_COLOURS[item.kind]}{text}{_PLAIN}" if colour and item.kind in _COLOURS else text)
        lines.append("")
    return "\n".join(lines).strip()


def verdict_markdown(verdicts: Sequence[ArmVerdict]) -> str:
    """The block for a pull request or a job summary: bold lines and lists."""
    lines = []
    for verdict in verdicts:
        lines += [f"**{escaped(_claim(verdict))}** {escaped(ratio_sentences(verdict))}".rstrip(), ""]
        for item in _items(verdict):
            symbol = "" if item.kind == "rests-on" else f"{item.symbol} "
            lines.append(f"- {symbol}{escaped(item.text)}")
        lines.append("")
    return "\n".join(lines).strip()


def verdict_html(verdict: ArmVerdict, sections: Sequence[str]) -> Markup:
    """One arm's block for the page that has these `sections`, which its items link to; all text in it is escaped."""
    head = Markup('<p class="verdict"><strong>{}</strong> {}</p>\n<ul class="caveats">')
    lines = [head.format(unbroken(_claim(verdict)), unbroken(ratio_sentences(verdict)))]
    for item in _items(verdict):
        # One element: the list is a grid of the symbol and the text.
        around = Markup('<a href="#{}">{}</a>') if item.section in sections else Markup("<div>{1}</div>")
        text = around.format(item.section, unbroken(item.text))
        lines.append(
            Markup('<li class="{}"><span aria-hidden="true">{}</span> {}</li>').format(item.kind, item.symbol, text)
        )
    return Markup("\n").join([*lines, Markup("</ul>")])


def _claim(verdict: ArmVerdict) -> str:
    return f"{verdict.arm} vs {verdict.baseline}: {verdict.words}."


def _items(verdict: ArmVerdict) -> list[_Item]:
    """Basis, caveats and remedy."""
    items = [_Item("rests-on", "·", f"{verdict.basis}.")] if verdict.basis else []
    shown, more = verdict.caveats[:MOST_CAVEATS], verdict.caveats[MOST_CAVEATS:]
    items += [_Item(caveat.kind, SYMBOLS[caveat.kind], caveat.text, caveat.section) for caveat in shown]
    if more:
        kinds = ", ".join(dict.fromkeys(caveat.kind for caveat in more))
        items.append(_Item("more", "+", f"{len(more)} more: {kinds}.", "first"))
    if verdict.settle:
        remedies = "; ".join(verdict.settle)
        items.append(_Item("settle", "→", f"{remedies[0].upper()}{remedies[1:]} would resolve it."))
    return items


def unbroken(text: str) -> Markup:
    """A text for the page in which a browser breaks no line after the hyphen of an interval or a name."""

    def kept(match: re.Match[str]) -> str:
        return f'<span class="whole">{match[0]}</span>' if len(match[0]) <= _LONGEST_UNBROKEN else match[0]

    return Markup(re.sub(r"[\w.]+(?:-[\w.]+)+", kept, str(escape(text))))


def print_verdict(verdicts: Sequence[ArmVerdict], after: Sequence[str] = ()) -> None:
    """Prints the block and lines after it: in colour on a terminal without NO_COLOR, and no wider than the terminal."""
    colour = colour_wanted()
    width = min(shutil.get_terminal_size().columns, 100) if colour else _WIDTH
    print(verdict_text(verdicts, width, colour), file=own_stream(sys.stdout))
    for line in after:
        print(textwrap.fill(shown(line), width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def add_to_job_summary(text: str) -> None:
    """Appends Markdown to the summary of a GitHub Actions job: the file that GITHUB_STEP_SUMMARY names."""
    if name := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(name).open("a", encoding="utf-8") as file:
                file.write(f"{text}\n\n")
        except OSError as error:
            print_message(f"cannot add the verdict to the job summary: {error}")


def escaped(text: str) -> str:
    """A text from the data for a line or a table cell of Markdown, in which nothing of it is live.

    GitHub looks for names of its users also behind a backslash.
    """
    text = re.sub(r"([\\`*_\[\]<>|#&]|(?<=www)\.|:(?=//))", r"\\\1", shown(text.replace("\n", " ")))
    return re.sub(r"@(?=\w)", "@&#8203;", text)


def ratio_sentences(verdict: ArmVerdict) -> str:
    """The ratios of a verdict whose intervals are narrow enough; with several units, where each is known."""
    return " ".join(_ratio(ratio, len(verdict.ratios) > 1) for ratio in verdict.ratios if not ratio.too_wide)


def _ratio(ratio: Ratio, several: bool) -> str:
    low, high = (ratio_text(value) for value in ratio.value)
    interval = "no confidence interval"
    if not math.isnan(ratio.interval[0]):
        interval = f"95% CI {'-'.join(ratio_text(end).rstrip('×') for end in ratio.interval)}"
        if len(ratio.interval_at) < len(ratio.at):
            interval += f" at {join_first(ratio.interval_at, MOST_NAMES)} only"
    where = f"at {join_first(ratio.at, MOST_NAMES)}: " if several else ""
    sentence = f"{where}{ratio.unit} {low if low == high else f'{low} to {high}'} ({interval})."
    return sentence[0].upper() + sentence[1:]
