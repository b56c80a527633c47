"""Writes the tables in docs/ that come from the code's data, between their marks: `make docs`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from common.files import ROOT, write_text
from common.gpus import KNOWN_GPUS
from trainers.timers.lookup import declared_trees
from workflow.cli import COMMANDS
from workflow.commands.parser import EXIT_CODES
from workflow.stacks.definition import ENVS, load_stack

Table = tuple[Sequence[str], Iterable[Sequence[str]]]


def gpus() -> Table:
    """The figures of each GPU that floors use."""
    header = ("GPU, with its data sheet", "driver's name", "memory; bandwidth; dense bfloat16")
    return header, [
        (
            f"[`{known}`]({gpu.source})",
            ", ".join(f"NVIDIA {name}" for name in gpu.reported),
            f"{gpu.memory_gib:g} GiB; {gpu.bandwidth_tb_s:.3f} TB/s; {gpu.bf16_tflops:g} TFLOP/s",
        )
        for known, gpu in KNOWN_GPUS.items()
    ]


def stacks() -> Table:
    """The stacks of envs/."""
    header = ("stack", "what it is", "Python; free space needed")
    named = [load_stack(file.parent.name) for file in sorted(ENVS.glob("*/stack.yaml"))]
    return header, [
        (
            f"`{stack.name}`",
            stack.description.rstrip("."),
            f"{stack.python}; {stack.disk_gib:g} GiB",
        )
        for stack in named
    ]


def trees() -> Table:
    """The releases with declared timer trees, by trainer and loop."""
    series: dict[tuple[str, ...], list[str]] = {}
    for tree in declared_trees():
        trainer = f"{tree.trainer} `{tree.mode}`" if tree.mode else tree.trainer
        row = (trainer, "overlap" if tree.overlap else "sum to the step")
        series.setdefault(row, []).append(tree.series)
    header = ("trainer, loop", "phases", "releases")
    return header, [(*row, ", ".join(dict.fromkeys(found))) for row, found in series.items()]


def commands() -> Table:
    """The commands of `rolloutbench`."""
    listed = {name: command for name, command in COMMANDS.items() if command.meaning}
    return ("command", "what it does"), [(f"`{name}`", command.meaning) for name, command in listed.items()]


def exit_codes() -> Table:
    """Each exit code, with the commands that give it another meaning."""
    codes = sorted({*EXIT_CODES, *(code for one in COMMANDS.values() for code in one.exit_codes)})
    rows = []
    for code in codes:
        own = [f"for `{name}`: {one.exit_codes[code]}" for name, one in COMMANDS.items() if code in one.exit_codes]
        rows.append((str(code), "; ".join([*filter(None, [EXIT_CODES.get(code)]), *own])))
    return ("code", "meaning"), rows


TABLES: dict[str, tuple[str, Callable[[], Table]]] = {
    "gpus": ("docs/roofline.md", gpus),
    "stacks": ("docs/stacks.md", stacks),
    "trees": ("docs/timers.md", trees),
    "commands": ("docs/commands.md", commands),
    "exit-codes": ("docs/commands.md", exit_codes),
}


def page_with(name: str, page: str) -> str:
    """A page with one of its tables replaced."""
    header, rows = TABLES[name][1]()
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)]
    lines[1] = "|" + "---|" * len(header)
    marks = re.compile(rf"(<!-- table {name}:[^\n]*-->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    found = marks.search(page)
    if found is None:
        raise SystemExit(f"error: {TABLES[name][0]} lacks the marks around the table {name}")
    return page[: found.start()] + found[1] + "\n".join(lines) + "\n" + found[2] + page[found.end() :]


def main() -> None:
    for name, (page, _) in TABLES.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        write_text(ROOT / page, page_with(name, text))


if __name__ == "__main__":
    main()
