"""No line of a log crashes the importer: real lines are damaged, and make a table or one message."""

import json
import random
import tracemalloc
from pathlib import Path

import pytest

from analysis.imports.formats import read_source
from analysis.sources.wandb_api import RUN_FILE
from common.errors import UserError
from tests.analysis.imports_of import run_of, written
from trainers.registry import trainers

HERE = Path(__file__).parents[2] / "answers" / "logs_of_each_format"
LOGS = {file.stem: file.read_text(encoding="utf-8") for file in sorted(HERE.iterdir()) if file.name != "answer.yaml"}
OTHERS = ("nemo-rl-console", "openrlhf-console", "skyrl-console", "skyrl-timers", "slime-console")
TRAINERS = {form.name: trainer.name for trainer in trainers() for form in trainer.logs.formats}
TRAINERS |= {"table": "verl", "wandb": "verl", "skyrl-timers": "skyrl"}
# What has crashed readers: half a character, numbers without end, deep nesting, marks of encodings, other digits.
ODD = (
    "\\ud800", "9" * 400, "[" * 2_000, '{"a":' * 2_000, "\ufeff", "\0", "1e999", "-inf", "NaN", "٣", "²", "'", '"',
    "\r",
)  # fmt: skip
INSERTS = [piece.encode() for piece in (*ODD, "2147483648", "0", "-1", *(LOGS[form] for form in LOGS.keys() - OTHERS))]
# Those that share their readers' parts are damaged less often.
TIMES = dict.fromkeys(OTHERS, 150)
KINDS = ("flip", "cut", "double", "insert", "replace", "digit")


def some_damage(draw):
    """One to four damages for `damaged`, often at the edges; random.Random costs little beside an import."""

    def number(count):
        return draw.choice((0, 1, count - 1)) if draw.random() < 0.2 else draw.randrange(count)

    return [
        (draw.choice(KINDS), number(10_000), number(256), draw.randrange(len(INSERTS)))
        for _ in range(draw.choice((1, 1, 2, 3, 4)))
    ]


def damaged(log, damage):
    """A log after so many damages: `place` is in ten-thousandths of its length."""
    for kind, place, value, piece in damage:
        at = place * (len(log) + 1) // 10_000
        end = min(len(log), at + value)
        if kind == "flip":
            log = log[:at] + bytes([value]) + log[at + 1 :]
        elif kind == "cut":
            log = log[:at] + log[end:] if value < 250 else log[:at]
        elif kind == "double":
            log = log[:end] + log[at:]
        elif kind == "insert":
            log = log[:at] + INSERTS[piece] + log[at:]
        elif kind == "digit":
            log = log.replace(b"%d" % (value % 10), INSERTS[piece % len(ODD)], 1 + value % 3)
        else:
            log = log[:at] + INSERTS[piece] + log[end:]
    return log


def imported(folder, form, content):
    """The rows of a log of a format, through all that reads a source and makes its table."""
    source = folder / ("log.csv" if form == "table" else "log")
    if form == "wandb":
        cache = folder / "a" / "b" / "c"
        cache.mkdir(parents=True, exist_ok=True)
        (cache / RUN_FILE).write_text(json.dumps({"complete": True, "rows": 3, "history_lines": 3}))
        (cache / "history-000000000.jsonl").write_bytes(content)
    else:
        source.unlink(missing_ok=True)  # ext4 waits for the disk where a file is written over
        source.write_bytes(content)
    given, engine = "wandb:a/b/c" if form == "wandb" else str(source), "sglang" if form == "slime-console" else "vllm"
    return len(run_of(folder, [given], TRAINERS[form], engine, batch_size=16).table)


@pytest.mark.parametrize("bad", ["[" * 20_000, '{"a":' * 20_000])
@pytest.mark.parametrize("form", ["verl-jsonl", "swift-jsonl"])
def test_a_line_that_nests_too_deep_is_left_out_and_told(tmp_path, form, bad):
    lines = LOGS[form].splitlines(keepends=True)
    found = read_source(written(tmp_path, lines[0] + bad + "\n" + lines[2], "log"), form, (), tmp_path)
    assert list(found.read.records) == [1, 3]
    (told,) = [v for v in found.read.verdicts if v.code == "corrupt-line"]
    assert f"{tmp_path / 'log'}:2 cannot be read and was skipped" in told.text and len(told.text) < 300


@pytest.mark.parametrize("form", LOGS)
def test_a_step_that_no_table_can_hold_is_refused_with_its_place(tmp_path, form):
    content = LOGS[form]
    shows = ["step:3 ", '"step": 3', "'3/25'", '"3/25"', "3,timing", 'global_step": 3', "| 3/25"]
    for shown in [*shows, "= Step 3/", "Global step 3:", "- Step 3:", "global_step: 3", "perf 3:", "rollout 3:"]:
        content = content.replace(shown, shown.replace("3", "2147483648"))
    with pytest.raises(UserError, match=r"is of step 21474836\d\d, and 2147483647 is the highest that can be read"):
        imported(tmp_path, form, content.encode())


def test_a_hole_of_a_thousand_million_steps_takes_no_memory(tmp_path):
    content = LOGS["verl-jsonl"].replace('"step": 3', '"step": 2147483647').encode()
    tracemalloc.start()
    assert imported(tmp_path, "verl-jsonl", content) > 0
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("form", "given", "put"),
    [
        # Each crashed the importer once.
        ("swift-jsonl", '"13.5"', '"1e999"'),
        ("verl-console", "perf/total_num_tokens:283792.000", "perf/total_num_tokens:1e308"),
        ("wandb", '"response_length/mean": 17435.688', '"response_length/mean": Infinity'),
        ("table", "408.19", "x" * 200_000),
        ("table", "timing_s/gen", "timing_s/\0"),
        ("table", "a,2,", "a," + "2" * 5000 + ","),
        ("trainer-state", '"reward"', '"\\ud800"'),
        ("verl-console", "step:2 ", "step:" + "2" * 5000 + " "),
    ],
)
def test_what_crashed_the_importer(tmp_path, form, given, put):
    content = LOGS[form].replace(given, put)
    try:
        assert imported(tmp_path, form, content.encode()) > 0
    except UserError as error:
        assert len(str(error)) < 1000


@pytest.mark.full("many damaged files")
@pytest.mark.parametrize("form", LOGS)
def test_no_damage_crashes_the_importer(tmp_path_factory, form):
    folder = tmp_path_factory.mktemp("damaged")

    draw = random.Random(form)
    for _ in range(TIMES.get(form, 2000)):
        damage = some_damage(draw)
        try:
            assert imported(folder, form, damaged(LOGS[form].encode(), damage)) > 0
        except UserError as error:
            assert str(error)
        except BaseException as error:
            error.add_note(f"after the damage {damage}")
            raise
