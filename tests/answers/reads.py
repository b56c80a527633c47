"""What is read of a log alone, before it is compared: its steps, their numbers, what is said of it, or its refusal.

README.md has the keys.
"""

import json
import math
import re
import shlex
import subprocess

import pytest

from analysis.imports.formats import WANDB, read_source
from analysis.imports.one_run import merged
from analysis.sources.plain_table import FLAG
from analysis.sources.wandb_api import HISTORY_PARTS, RUN_FILE
from common.dotted import lookup
from common.errors import UserError
from common.verdicts import Verdict
from tests.analysis.imports_of import run_of
from tests.event_files import write_events
from trainers.logs.record import STEPS_LOGGED

HOW = {"log", "events", "encoding", "sources", "given", "import", "same_as", "about"}
"""The keys of a log that say what it has and how it is read; all others are what is right."""
LONGEST = 500
"""The characters of a refusal, but for the list of all formats, and without commands that part a file."""
COMMANDS = "each run by itself: "


class Read:
    """The content of a log, or with `import` the table of a run, under the same names."""

    def __init__(self, folder, name, how):
        sources = [str(folder / one) if not one.startswith(WANDB) else one for one in how.get("sources", [name])]
        if "import" in how:
            self._of_run(run_of(folder, sources, **how["import"]))
        else:
            given = {"form": None, "names": (), "cache": folder, **how.get("given", {})}
            self._of_sources([read_source(one, **given) for one in sources])

    def _of_run(self, run):
        self.verdicts = [Verdict(one["level"], code, one["text"]) for code, one in run.verdicts.items()]
        rows = run.table.replace({math.nan: None}).to_dict("records")
        self.steps = list(dict.fromkeys(row["step"] for row in rows))
        self.values, self.rounding, self.own = (_by_name(rows, key) for key in ("value", "rounding", "exclusive_s"))
        self.resumed = sorted({row["step"] for row in rows if row["resumed"]})
        self.lines = [next(row["source_line"] for row in rows if row["step"] == step) for step in self.steps]
        self.timers, self.names = run.timers, list(dict.fromkeys(row["name"] for row in rows))
        self.phases = list(dict.fromkeys(row["name"] for row in rows if row["kind"] == "phase"))
        self.units = {row["name"]: row["unit"] for row in rows}
        self.config, self.versions, self.format = run.end["resolved"], run.end["versions"], ""

    def _of_sources(self, found):
        read = merged([one.read for one in found], "a-s0")
        records, first = read.records, found[0]
        self.verdicts, self.repeated, self.steps = read.verdicts, sorted(read.repeated), list(records)
        self.values = _turned({step: one.scalars for step, one in records.items()})
        self.rounding = _turned({step: one.rounding for step, one in records.items()})
        self.window = [one.scalars.get(STEPS_LOGGED, 1) for one in records.values()]
        self.resumed = [step for step, one in records.items() if one.resumed]
        self.lines = [one.line for one in records.values()]
        self.elapsed_s = [one.elapsed_s for one in records.values()]
        self.format, self.config, self.versions = first.format, first.config, first.versions
        self.overrides, self.hardware, self.git = first.overrides, first.hardware, first.git
        samples = next(iter(records.values())).samples if records else {}
        self.samples = {name: [len(some), round(sum(some) / len(some), 6)] for name, some in samples.items()}
        self.selected, (self.column, self.unit) = first.selected, (first.column or {"": None, "unit": None}).values()
        self.phases = first.tree and [name for name, phase in first.tree.items() if phase.parent]

    @property
    def codes(self):
        return [one.code for one in self.verdicts]

    @property
    def levels(self):
        return [f"{one.level} {one.code}" for one in self.verdicts]

    @property
    def text(self):
        return " ".join(one.text for one in self.verdicts)


def _by_name(rows, key):
    return _turned({step: {r["name"]: r[key] for r in rows if r["step"] == step} for step in {r["step"] for r in rows}})


def _turned(by_step):
    """Step -> name -> number as name -> step -> number."""
    names = {name for numbers in by_step.values() for name in numbers}
    return {name: {step: numbers.get(name) for step, numbers in by_step.items()} for name in names}


def steps_in(text):
    """The steps of a text such as `1-4 7 10-30/5`."""
    found = []
    for part in str(text).split():
        first, last, every = re.fullmatch(r"(\d+)(?:-(\d+))?(?:/(\d+))?", part).groups()
        found += range(int(first), int(last or first) + 1, int(every or 1))
    return found


def wrong_numbers(numbers, right, steps, what, within):
    """What is wrong in the numbers of the steps; a right number alone is that of all steps, null of a name without."""
    found = []
    for name, values in right.items():
        if isinstance(values, list):
            values = dict(zip(steps, values, strict=True))
        elif not isinstance(values, dict):
            values = dict.fromkeys(steps, values)
        for step, value in values.items():
            got = numbers.get(name, {}).get(step)
            is_near = None not in (got, value) and got == pytest.approx(value, rel=1e-6, abs=within, nan_ok=True)
            if got != value and not is_near:
                found.append(f"{what} {name} of step {step} is {got}, not {value}")
    return found


def wrong_in_read(read, right):
    """What is wrong in what was read, one sentence each."""
    found, within = [], right.get("within", 0.0)
    for key, value in right.items():
        if key in ("values", "rounding", "own"):
            found += wrong_numbers(getattr(read, key), value, read.steps, key, within)
        elif key in ("steps", "resumed", "repeated"):
            if getattr(read, key) != steps_in(value):
                found.append(f"{key}: {getattr(read, key)}, not {value}")
        elif key == "units":
            got = {name: read.units.get(name) for name in value}
            found += [f"units: {got}, not {value}"] * (got != value)
        elif key in ("config", "overrides", "samples"):
            got = {name: lookup(getattr(read, key), name) for name in value}
            found += [f"{key}: {got}, not {value}"] * (got != value)
        elif key in ("says", "says_not"):
            found += [f"{key} {word!r}: {read.text}" for word in value if (word in read.text) != (key == "says")]
        elif key in ("has", "has_not"):
            there = {*read.codes, *read.levels, *read.values}
            found += [f"{key}: {one}" for one in value if (one in there) != (key == "has")]
        elif key != "within" and getattr(read, key) != value:
            found.append(f"{key}: {getattr(read, key)}, not {value}")
    return found


def put(folder, name, how):
    """Writes the log of a case, or its folder of event files; that of a run of wandb as if it had been fetched."""
    for one in how.get("events", ()):
        write_events(folder / name, **{**one, "steps": steps_in(one["steps"])})
    if "log" not in how:
        return
    path = folder / name
    if name.startswith(WANDB):
        path = folder / name.removeprefix(WANDB) / HISTORY_PARTS.replace("*", "-000000000")
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.startswith(WANDB):
        rows = len(how["log"].splitlines())
        about = {"complete": True, "rows": rows, "history_lines": rows, **how.get("about", {})}
        path.with_name(RUN_FILE).write_text(json.dumps(about))
    path.write_bytes(how["log"].encode(how.get("encoding", "utf-8")))


def wrong_in_log(folder, name, said):
    """What is wrong in the reading of a log of a folder, or in its refusal."""
    how, right = ({key: said[key] for key in said if (key in HOW) == of_how} for of_how in (True, False))
    refused, parts = right.pop("refused", None), right.pop("parts", {})
    try:
        read = Read(folder, name, how)
    except UserError as error:
        refusal = str(error)
        shown = refusal.replace(str(folder), "").partition(COMMANDS)[0]
    else:
        other = Read(folder, how["same_as"], {}) if "same_as" in how else read
        found = [f"is not as {how['same_as']}"] if (other.steps, other.values) != (read.steps, read.values) else []
        return found + (["is not refused"] if refused else wrong_in_read(read, right))
    if refused is None:
        return [f"is refused: {refusal}"]
    found = [f"the refusal does not say {word!r}: {refusal}" for word in refused if word not in refusal]
    if (len(shown) > LONGEST or "\n" in shown) and "What can be imported" not in refusal:
        found.append(f"the refusal is long ({len(shown)} characters): {shown}")
    for flag in re.findall(rf"{FLAG} (?:'[^']*'|\S+)", refusal):
        Read(folder, name, {"given": {"step_seconds": shlex.split(flag)[1]}})
    if parts:
        command = re.search(rf"{COMMANDS}(.*?)(?: \(if|$)", refusal)[1]
        subprocess.run(["bash", "-c", command], check=True, cwd="/")
    return found + [one for part, said in parts.items() for one in wrong_in_log(folder, part, said)]


def logs_in(said):
    """The logs of a case by name, each with all its keys; those of `right` count where a log has none of its own."""
    if "reads" not in said:
        return said.get("logs", {})
    return {name: {**said.get("right", {}), **(log or {})} for name, log in said["reads"].items()}
