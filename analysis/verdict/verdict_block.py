"""Renders the verdicts as one block: for the terminal, Markdown, and the page."""

from __future__ import annotations

import math
import os
import re
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from analysis.verdict.arm_verdict import ArmVerdict, Ratio, ratio_text
from analysis.verdict.caveats import MOST_NAMES
from common.messages import colour_wanted, join_first, print_message

MOST_CAVEATS = 5
SYMBOLS = {"terms": "≠", "gate": "✗", "spread": "±", "estimates": "⇄", "data": "?"}
_BOLD, _PLAIN, _YELLOW = "\x1b[1m", "\x1b[0m", "\x1b[33m"
_COLOURS = dict.fromkeys(SYMBOLS, _YELLOW) | {"gate": "\x1b[31m", "settle": "\x1b[36m", "rests-on": "\x1b[2m"}
_WIDTH = 80
_LONGEST_UNBROKEN = 24  # characters; a longer text does not fit a telephone's line


class _Text:
    """Lines for a terminal: wrapped, and in colour on request."""

    end = ""

    def __init__(self, width: int, colour: bool) -> None:
        self.width, self.colour = width, colour

    def line(self, claim: str, ratios: str) -> str:
        lines = self._wrapped(f"{claim} {ratios}".strip(), "")
        # The claim may take two lines.
        shown = textwrap.fill(claim, self.width)
        return f"{_BOLD}{shown}{_PLAIN}{lines[len(shown) :]}" if self.colour and lines.startswith(shown) else lines

    def item(self, kind: str, symbol: str, text: str, section: str) -> str:
        colour = _COLOURS.get(kind, "") if self.colour else ""
        return f"{colour}{self._wrapped(f'{symbol} {text}', '  ')}{_PLAIN if colour else ''}"

    def _wrapped(self, text: str, later: str) -> str:
        return textwrap.fill(text, self.width, subsequent_indent=later, break_long_words=False, break_on_hyphens=False)


class _Markdown:
    """A bold line and a list, to paste into a pull request."""

    end = ""

    def line(self, claim: str, ratios: str) -> str:
        return f"**{escaped(claim)}** {escaped(ratios)}".rstrip() + "\n"

    def item(self, kind: str, symbol: str, text: str, section: str) -> str:
        return f"- {symbol} {escaped(text)}" if section or kind == "settle" else f"- {escaped(text)}"


class _Page:
    """A paragraph and a list of the page; a caveat links to its section."""

    end = Markup("</ul>")

    def __init__(self, sections: frozenset[str]) -> None:
        self.sections = sections

    def line(self, claim: str, ratios: str) -> Markup:
        head = Markup('<p class="verdict"><strong>{}</strong> {}</p>\n<ul class="caveats">')
        return head.format(unbroken(claim), unbroken(ratios))

    def item(self, kind: str, symbol: str, text: str, section: str) -> Markup:
        # One element: the list is a grid of the symbol and the text.
        around = Markup('<a href="#{}">{}</a>') if section in self.sections else Markup("<div>{1}</div>")
        shown = around.format(section, unbroken(text))
        return Markup('<li class="{}"><span aria-hidden="true">{}</span> {}</li>').format(kind, symbol, shown)


def verdict_text(verdicts: Sequence[ArmVerdict], width: int = _WIDTH, colour: bool = False) -> str:
    """The block for a terminal."""
    return _rendered(verdicts, _Text(width, colour))


def verdict_markdown(verdicts: Sequence[ArmVerdict]) -> str:
    """The block for a pull request or a job summary."""
    return _rendered(verdicts, _Markdown())


def verdict_html(verdict: ArmVerdict, sections: Sequence[str]) -> Markup:
    """One arm's block for the page that has these `sections`; all text in it is escaped."""
    return Markup(_rendered([verdict], _Page(frozenset(sections))))


def unbroken(text: str) -> Markup:
    """A text for the page in which a browser breaks no line after the hyphen of an interval or a name."""

    def kept(match: re.Match[str]) -> str:
        return f'<span class="whole">{match[0]}</span>' if len(match[0]) <= _LONGEST_UNBROKEN else match[0]

    return Markup(re.sub(r"[\w.]+(?:-[\w.]+)+", kept, str(escape(text))))


def print_verdict(verdicts: Sequence[ArmVerdict]) -> None:
    """Prints the block: with colour on a terminal unless NO_COLOR is set, and no wider than the terminal."""
    colour = colour_wanted()
    print(verdict_text(verdicts, min(shutil.get_terminal_size().columns, 100) if colour else _WIDTH, colour))


def add_to_job_summary(text: str) -> None:
    """Appends Markdown to the summary of a GitHub Actions job: the file that GITHUB_STEP_SUMMARY names."""
    if name := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(name).open("a", encoding="utf-8") as file:
                file.write(f"{text}\n\n")
        except OSError as error:
            print_message(f"cannot add the verdict to the job summary: {error}")


def escaped(text: str) -> str:
    """A text from the data with its Markdown characters escaped, for a line or a table cell."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", text).replace("\n", " ")


def _rendered(verdicts: Sequence[ArmVerdict], form: Any) -> str:
    """Line, basis, caveats and remedy of each verdict; `form` writes each part as text, Markdown or HTML."""
    parts: list[str] = []
    for one in verdicts:
        parts.append(form.line(f"{one.arm} vs {one.baseline}: {one.words}.", ratio_sentences(one)))
        if one.basis:
            parts.append(form.item("rests-on", "·", f"{one.basis}.", ""))
        shown, more = one.caveats[:MOST_CAVEATS], one.caveats[MOST_CAVEATS:]
        parts += [form.item(caveat.kind, SYMBOLS[caveat.kind], caveat.text, caveat.section) for caveat in shown]
        if more:
            kinds = ", ".join(dict.fromkeys(caveat.kind for caveat in more))
            parts.append(form.item("more", "+", f"{len(more)} more: {kinds}.", "first"))
        if one.settle:
            remedies = "; ".join(one.settle)
            parts.append(form.item("settle", "→", f"{remedies[0].upper()}{remedies[1:]} would resolve it.", ""))
        parts.append(form.end)
    return "\n".join(parts).strip()


def ratio_sentences(verdict: ArmVerdict) -> str:
    """The ratios of a verdict with their intervals; with several units, where each is known."""
    return " ".join(_ratio(ratio, len(verdict.ratios) > 1) for ratio in verdict.ratios)


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
