"""Writes what docs/ repeat from the code, and the configuration's JSON schema: `make docs`."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from common import contracts, findings, verdicts
from common.files import ROOT, write_text
from common.gpus import KNOWN_GPUS
from common.json_types import markdown_table
from trainers.registry import declared_trees
from workflow.commands.parser import COMMANDS, EXIT_CODES
from workflow.config.model import Config, config_schema
from workflow.stacks.definition import ENVS, load_stack

FILES_PAGE = "docs/files.md"
Table = tuple[Sequence[str], Iterable[Sequence[str]]]


def gpus() -> Table:
    """The figures of each GPU that floors use."""
    header = ("GPU, with its data sheet", "driver's name", "memory; bandwidth")
    return header, [
        (
            f"[`{known}`]({gpu.source})",
            ", ".join(f"NVIDIA {name}" for name in gpu.reported),
            f"{gpu.memory_gib:g} GiB; {gpu.bandwidth_tb_s:.3f} TB/s",
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


def reference_page() -> str:
    """The Markdown reference page: a table for each part of a configuration, keys with those of their sections."""
    schema = Config.model_json_schema()
    parts = [
        "# The configuration\n",
        "<!-- Written by `make docs` from workflow/config/model.py; edit the docstrings there. -->\n",
        "An experiment is one YAML file: `config.yaml`, or another one. It describes only the science; cores,\n"
        "partitions and walltimes are in a profile. Keys that are not listed here are rejected. `report.currency` is\n"
        "the key `currency` in the section `report`; `[]` marks a list of sections.\n",
    ]
    for title, name, inside in _PARTS:
        section = schema["$defs"][name] if name else schema
        rows = [*_rows(section), *(row for key, of in inside.items() for row in _rows(schema["$defs"][of], f"{key}."))]
        head = "| key | type, default | meaning |\n|---|---|---|"
        parts.append(f"## {title}\n{_text(section)}\n\n{head}\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


_PARTS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("The experiment", "", {"seeds": "Until", "envs": "Envs", "report": "Report"}),
    ("`arms.<name>`", "Arm", {"import": "Import", "import.runs[]": "ImportedRun"}),
    ("`workload`", "Workload", {"model": "Model", "data": "Data"}),
    ("`workload.rewards[]`", "Reward", {}),
    ("`workload.rewards[]` with a source", "OwnReward", {}),
    ("`workload.rewards[]` with a model", "RewardModel", {}),
)
"""Each part's title and section of the schema ("" is the whole), and the sections inside it."""


def files_page() -> str:
    """The page of file contracts, with new tables between `<!-- Kind -->` and `<!-- /Kind -->`."""

    def table(found: re.Match[str]) -> str:
        modules = (contracts, findings, verdicts)
        kind = next(getattr(module, found[1]) for module in modules if hasattr(module, found[1]))
        return f"<!-- {found[1]} -->\n{markdown_table(kind)}<!-- /{found[1]} -->"

    text = (ROOT / FILES_PAGE).read_text(encoding="utf-8")
    return re.sub(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", table, text, flags=re.DOTALL)


def _rows(section: dict[str, Any], inside: str = "") -> Iterator[str]:
    # The first alternative of an arm has its required keys; the second is `same_as`.
    required = set(section.get("required") or section.get("anyOf", [{}])[0].get("required", ()))
    for key, field in section["properties"].items():
        default = "required" if key in required else f"`{json.dumps(field.get('default'), ensure_ascii=False)}`"
        kind = _type(field)
        given = kind if kind == "section" and default != "required" else f"{kind}, {default}"
        yield f"| `{inside}{key}` | {given} | {_text(field)} |"


def _text(part: dict[str, Any]) -> str:
    return " ".join(str(part.get("description", "")).split())


def _type(field: dict[str, Any]) -> str:
    if "oneOf" in field:
        return " or ".join(map(_type, field["oneOf"]))
    if "anyOf" in field:
        # `null` is left out where it is the default, which stands beside the type.
        options = [one for one in field["anyOf"] if one.get("type") != "null" or field.get("default") is not None]
        return " or ".join(map(_type, options))
    if "enum" in field:
        return " or ".join(f"`{value}`" if value else '`""`' for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if "$ref" in field:
        return "section"
    kind = str(field.get("type", "any"))
    return {"array": "list", "object": "mapping"}.get(kind, kind)


def trainer_page() -> str:
    """The toy trainer of the tests, whole: what whoever adds a trainer writes."""
    parts = [_ADD_A_TRAINER]
    for name, about in _OF_A_TRAINER.items():
        file = ROOT / "tests" / "trainers" / "toy" / name
        parts.append(f"## `{name}`: {about}\n\n```python\n{file.read_text(encoding='utf-8')}```\n")
    return "\n".join(parts)


_OF_A_TRAINER = {
    "trainer.py": "what it is",
    "console.py": "how its log is read",
    "driver.py": "what runs in its stack",
}
_ADD_A_TRAINER = """\
# Add a trainer

<!-- Written by `make docs` from tests/trainers/toy/; edit the files there. -->
A trainer is a folder of `trainers/` and its name in `trainers/registry.py` (`_DRIVEN`). These three files are a
whole one: the toy of the tests, which learns sums with policy gradients on a table.
`tests/trainers/test_toy.py` plans it, checks it, resolves its settings, trains it with the local launcher,
collects it, reads its console again and reports it beside TRL.

Begin with `trainer.py` and `console.py`: a trainer without a `driver` is imported, and its runs can be
compared. `keys` translates its settings; what else a `Trainer` may say is in
[`trainers/protocol.py`](../../trainers/protocol.py), each field with its meaning.
"""


PROMISES_PAGE = "docs/reliability.md"


def promises_page() -> str:
    """The page of promises; its last column has the tests that are marked with the name of the row's promise."""
    marked = promises()

    def row(found: re.Match[str]) -> str:
        return f"<!-- promise {found[1]} --> {', '.join(f'`{one}`' for one in marked[found[1]])}{found[2] or ''} |"

    text = (ROOT / PROMISES_PAGE).read_text(encoding="utf-8")
    named = re.findall(r"<!-- promise ([\w-]+) -->", text)
    if wrong := sorted(set(named) ^ set(marked)):
        raise SystemExit(f"error: {PROMISES_PAGE} and the tests' marks `promise` do not have the same names: {wrong}")
    return re.sub(r"<!-- promise ([\w-]+) -->[^|\n]*?(, `python -m bench[^`]*`)? \|", row, text)


def promises() -> dict[str, list[str]]:
    """The tests that are marked with each promise: files, functions of a file, or scenarios."""
    found: dict[str, list[str]] = {}
    for file in sorted(ROOT.glob("tests/*/scenarios.toml")):
        for name, scenario in tomllib.loads(file.read_text(encoding="utf-8")).items():
            for one in scenario.get("promise", ()):
                found.setdefault(one, []).append(f"{file.relative_to(ROOT)}::{name}")
    for file in sorted(ROOT.glob("tests/**/test_*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            marks = node.decorator_list if isinstance(node, ast.FunctionDef) else []
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                marks = [node.value]
            name = f"::{node.name}" if isinstance(node, ast.FunctionDef) else ""
            for call in (one for mark in marks for one in ast.walk(mark) if isinstance(one, ast.Call)):
                if ast.unparse(call.func) == "pytest.mark.promise":
                    for one in call.args:
                        found.setdefault(ast.literal_eval(one), []).append(f"{file.relative_to(ROOT)}{name}")
    return found


PAGES: dict[str, Callable[[], str]] = {
    PROMISES_PAGE: promises_page,
    "workflow/schemas/config.schema.json": config_schema,
    "docs/configuration.md": reference_page,
    FILES_PAGE: files_page,
    "docs/howto/trainer.md": trainer_page,
}
"""The files that are written whole."""


def main() -> None:
    for name, (page, _) in TABLES.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        write_text(ROOT / page, page_with(name, text))
    for file, content in PAGES.items():
        write_text(ROOT / file, content())


if __name__ == "__main__":
    main()
