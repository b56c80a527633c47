"""Telling formats by content, small tables, verl's file logger, and several sources of one run."""

import gzip
import math
import os
from pathlib import Path

import pytest

from analysis.imports.formats import read_source
from analysis.imports.one_run import merged
from common.errors import UserError
from trainers.logs.record import STEPS_LOGGED, SourceRead, StepRecord

TABLE = "step,phase,seconds\n3,step,878.89\n3,timing_s/gen,849.2\n4,step,12.5\n"
VERL = "step:1 - timing_s/gen:1.500 - timing_s/step:2.000\n"
TRL = "{'loss': 0.0, 'reward': 0.25, 'step_time': 3.25, 'learning_rate': 1e-06}\n"
JSONL = '{"step": 1, "data": {"timing_s/step": 2.0, "timing_s/gen": null, "x": "text"}}\n'


def write(tmp_path, text, name="x"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def read(source, names=(), form=None):
    return read_source(source, form, names, Path("unused"))


@pytest.mark.parametrize(
    ("text", "looks"),
    [
        ("", "the file is empty"),
        (b"\x7fELF\x00\x00", "the file is not text"),
        ("hello\nworld\n", "its first line begins 'hello'"),
        ('{\n  "loss": 0.5\n}\n', "its first line begins '{'"),
    ],
)
def test_an_unknown_file_lists_what_is_known(tmp_path, text, looks):
    with pytest.raises(UserError) as caught:
        read(write(tmp_path, text))
    said = str(caught.value)
    assert looks in said and "verl-console: " in said and "table: " in said


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (gzip.compress(b"step:1", mtime=0), "gunzip -k"),
        (b"\x28\xb5\x2f\xfd\x04", "unzstd"),
        (b"PK\x03\x04\x14\x00", "unzip"),
    ],
)
@pytest.mark.parametrize("form", [None, "verl-console"])
def test_a_packed_file_is_to_be_unpacked(tmp_path, text, command, form):
    source = write(tmp_path, text, "a.log.gz")
    with pytest.raises(UserError, match=f"is packed.*{command} {source}"):
        read(source, form=form)


@pytest.mark.parametrize(("text", "form"), [("step:0 - val-core/acc:0.500\n", None), ('{"log_history": []}', None)])
def test_no_step_at_all_is_an_error(tmp_path, text, form):
    with pytest.raises(UserError, match="has no training step as"):
        read(write(tmp_path, text), form=form)


@pytest.mark.parametrize(
    ("text", "form"), [(VERL, "trl-console"), (VERL, "table"), (TABLE, "verl-console"), (JSONL, "swift-jsonl")]
)
def test_a_file_that_is_certainly_of_another_format_is_not_read_as_the_one_given(tmp_path, text, form):
    with pytest.raises(UserError, match=f"x is .* by its content .*and import.format says {form}"):
        read(write(tmp_path, text), form=form)
    assert read(write(tmp_path, TRL + VERL), form="verl-console").format == "verl-console"
    with pytest.raises(UserError, match=r"is damaged|has no record"):
        read(write(tmp_path, ":W&B\0\n" + VERL), form="wandb-offline")


def test_what_is_not_there_and_unknown_formats(tmp_path):
    with pytest.raises(UserError, match="does not exist; give a file"):
        read(str(tmp_path / "none.log"))
    os.mkfifo(tmp_path / "pipe")
    for form in (None, "verl-console"):
        with pytest.raises(UserError, match="is neither a file nor a folder"):
            read(str(tmp_path / "pipe"), form=form)
    with pytest.raises(UserError, match=r"import.format must be one of wandb, wandb-offline"):
        read(write(tmp_path, VERL), form="csv")
    with pytest.raises(UserError, match="is a folder, but verl-console is"):
        read(str(tmp_path), form="verl-console")


def test_a_table_carries_half_of_the_last_decimal_that_it_shows(tmp_path):
    found = read(write(tmp_path, TABLE))
    record = found.read.records[3]
    assert record.scalars == {"timing_s/step": 878.89, "timing_s/gen": 849.2}
    assert record.rounding == {"timing_s/step": 0.005, "timing_s/gen": 0.005}, "849.2 may have been 849.20"
    assert record.origins["timing_s/gen"] == (found.read.records[3].file, 3)
    in_full = read(write(tmp_path, TABLE.replace("12.5", repr(100 / 3))))
    assert not in_full.read.records[3].rounding


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"Step": 1, "phase": "gen", "seconds": 1.5}\n{"Step": 1, "phase": "step", "seconds": "2.0"}\n', "x.jsonl"),
        ("# a note\nstep|phase|seconds\n1.0|gen|1.5\n1.0|step|2\n", "x.csv"),
        ("step;phase;seconds\n1;gen;1.5\n1;step;2\n1;gen;1.50\n\n", "x.csv"),
    ],
)
def test_a_table_of_phases_is_read_in_any_form_of_a_table(tmp_path, text, name):
    (record,) = read(write(tmp_path, text, name)).read.records.values()
    assert record.scalars == {"timing_s/gen": 1.5, "timing_s/step": 2.0}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("1,gen,10,5", "is no table of the columns that it names .*more cells.*without commas"),
        ('1,gen,"10,5"', r"t.csv:5: step must be a whole number from 1, .* \(got 1, gen, 10,5\); correct the row"),
        ("x,gen,1", r"\(got x, gen, 1\)"),
        ("5,,1", r"\(got 5, nothing, 1\)"),
        ("5,gen,1.5s", r"\(got 5, gen, 1.5s\)"),
        ("0,gen,1.5", r"\(got 0, gen, 1.5\)"),
    ],
)
def test_a_row_of_phases_that_is_none_is_refused_with_its_line(tmp_path, row, says):
    with pytest.raises(UserError, match=says):
        read(write(tmp_path, f"step,phase,seconds\n1,gen,1.5\n1,step,2\n\n{row}\n", "t.csv"))


def test_seconds_that_are_no_number_or_negative_are_read_as_they_are(tmp_path):
    scalars = read(write(tmp_path, "step,phase,seconds\n5,step,nan\n5,gen,-1\n")).read.records[5].scalars
    assert math.isnan(scalars["timing_s/step"]) and scalars["timing_s/gen"] == -1.0


SEVERAL = "run,engine,step,phase,seconds\na1,vllm,1,step,2.0\na2,sglang,1,step,1.0\n"


@pytest.mark.parametrize(("names", "seconds"), [(("x-s0", "vllm"), 2.0), (("sglang",), 1.0), (("a2", "vllm2"), 1.0)])
def test_a_table_of_several_runs_is_told_apart_by_the_names_of_the_run(tmp_path, names, seconds):
    assert read(write(tmp_path, SEVERAL), names).read.records[1].scalars == {"timing_s/step": seconds}


def test_a_table_of_several_runs_that_nothing_tells_apart_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"holds several runs: column run has a1, a2.*known as x, y.*one file for each"):
        read(write(tmp_path, SEVERAL), ("x", "y"))
    with pytest.raises(UserError, match=r"known as x-s0, x\. Name the arm"):
        read(write(tmp_path, SEVERAL), ("x-s0", "x", "x"))
    two = SEVERAL + "a3,vllm,1,step,3.0\n"
    with pytest.raises(UserError, match="column run has a1, a3"):
        read(write(tmp_path, two), ("vllm",))
    semicolons = read(write(tmp_path, SEVERAL.replace(",", ";")), ("vllm",))
    assert semicolons.read.records[1].scalars == {"timing_s/step": 2.0}


def test_verls_file_logger(tmp_path):
    text = '{"step": 0, "data": {"val/acc": 0.5}}\n' + JSONL + "{broken\n" + JSONL.replace("1,", "2,", 1) + '{"step": 3'
    found = read(write(tmp_path, text))
    assert list(found.read.records) == [1, 2] and [v.code for v in found.read.verdicts] == ["corrupt-line"]
    scalars = found.read.records[1].scalars
    assert scalars["timing_s/step"] == 2.0 and math.isnan(scalars["timing_s/gen"]) and "x" not in scalars
    assert found.read.records[1].line == 2 and not found.read.records[1].rounding
    with pytest.raises(UserError, match="holds several runs"):
        read(write(tmp_path, JSONL + JSONL.replace("2.0", "3.0")))


def test_of_two_sources_the_more_precise_counts(tmp_path):
    table = read(write(tmp_path, "step,phase,seconds\n1,step,2.00\n1,gen,1.50\n2,step,3.00\n", "t.csv"))
    log = read(write(tmp_path, "step:1 - timing_s/gen:1.497 - timing_s/ref:0.500\n", "t.log"))
    for order in ((table, log), (log, table)):
        record = merged([one.read for one in order], "r").records[1]
        assert record.scalars == {"timing_s/step": 2.0, "timing_s/gen": 1.497, "timing_s/ref": 0.5}
        assert record.rounding == {"timing_s/step": 0.005, "timing_s/gen": 0.0005, "timing_s/ref": 0.0005}
        places = [record.origins.get(f"timing_s/{name}", (record.file, record.line)) for name in ("gen", "step")]
        assert places == [(tmp_path / "t.log", 1), (tmp_path / "t.csv", 2)]
    assert list(merged([log.read, table.read], "r").records) == [1, 2]


def test_of_two_sources_the_one_with_more_rows_says_how_many_steps_a_row_stands_for(tmp_path):
    """Rows 10 and 20 alone look like means of ten steps; with row 15 between they are of five."""
    ten, five = (
        SourceRead({20: StepRecord(20, {}, {STEPS_LOGGED: steps, "reward": 0.5}, {}, None, tmp_path / "x", 1)})
        for steps in (10.0, 5.0)
    )
    for order in ((ten, five), (five, ten)):
        assert merged(order, "r").records[20].scalars == {STEPS_LOGGED: 5.0, "reward": 0.5}


def test_the_last_bit_of_a_number_in_full_may_differ(tmp_path):
    """Two programs that write 0.3 in full; a difference that a digit shows is one."""

    def source(value):
        return SourceRead({1: StepRecord(1, {}, {"reward": value}, {}, None, tmp_path / "x", 1)})

    assert merged([source(0.3), source(0.1 + 0.2)], "r").records[1].scalars == {"reward": 0.3}
    with pytest.raises(UserError, match="reward"):
        merged([source(0.3), source(0.3000001)], "r")


def test_sources_that_disagree_are_refused(tmp_path):
    table = read(write(tmp_path, "step,phase,seconds\n1,step,2.00\n1,gen,1.51\n", "t.csv"))
    log = read(write(tmp_path, VERL, "t.log"))
    with pytest.raises(UserError, match=r"run r, step 1, timing_s/gen: .*t\.csv:3 says 1\.51, .*t\.log:1 says 1\.5, "):
        merged([table.read, log.read], "r")
