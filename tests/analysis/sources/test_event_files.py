"""TensorBoard's event files, by its own writers: known trainers by their names, others as any table, and faults."""

import json
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from analysis.imports.formats import format_of, read_source
from analysis.imports.one_run import merged
from common.errors import UserError
from trainers.logs.record import STEPS_LOGGED, WALL
from workflow.cli import main

STEPS = range(1, 31)
BEGAN, EVERY = 1_700_000_000, 12.0
TRL = {"use_vllm": True, "learning_rate": 1e-6, "hub_token": "hf_secret"}


def single(value):
    """A number as an event file has it."""
    return struct.unpack("f", struct.pack("f", value))[0]


def trl(step, scale=1.0):
    return {"train/loss": 0.1, "train/step_time": scale * (10 + random.Random(step).random()), "train/epoch": step / 99}


def verl(step, scale=1.0):
    gen = scale * (8 + random.Random(step).random())
    timers = {"timing_s/gen": gen, "timing_s/old_log_prob": 1.0, "timing_s/step": gen + 1.1}
    return timers | {"training/global_step": step, "response_length/mean": 512.3}


def own(step, scale=1.0):
    rollout = scale * (8 + random.Random(step).random())
    return {"time/rollout": rollout, "time/train": 2.0, "time/total": rollout + 2.05, "loss": float("nan")}


def sft(step, scale=1.0):
    return {"train/loss": 1.0 / step, "train/learning_rate": 1e-5}


def events_of(row, steps, began, every, arguments):
    yield Event(wall_time=began, file_version="brain.Event:2")
    if arguments:
        text = Summary.Value(tag="args/text_summary", tensor=make_tensor_proto(json.dumps(arguments).encode()))
        yield Event(wall_time=began, summary=Summary(value=[text]))
    for at, step in enumerate(steps, start=1):
        for name, number in row(step).items():
            value = Summary.Value(tag=name, simple_value=number)
            yield Event(wall_time=began + at * every, step=step, summary=Summary(value=[value]))


def write(folder, row, steps=STEPS, began=BEGAN, every=EVERY, arguments=None):
    """The file of one process, named as torch's SummaryWriter names it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"events.out.tfevents.{began}.host.4711.0"
    with file.open("wb") as raw:
        writer = RecordWriter(raw)
        for event in events_of(row, steps, began, every, arguments):
            writer.write(event.SerializeToString())
    return file


def read(source, **given):
    return read_source(str(source), None, (), Path("unused"), **given)


def said(found, code):
    return [verdict.text for verdict in found.read.verdicts if verdict.code == code]


@pytest.mark.parametrize(
    ("row", "place", "named"),
    [
        (trl, "runs/Nov27_10-00-00_host", "a: trl 1.16 native, vllm; 1 run, 30 steps"),
        (verl, ".", "a: verl (read as 0.8), engine not in its log; 1 run, 30 steps"),
        (own, ".", "time/total is the step's seconds, time/rollout, time/train its phases"),
        (sft, "runs", "wall_time is a clock, and the step's seconds are its differences"),
    ],
)
def test_two_folders_of_event_files_are_compared(tmp_path, capsys, monkeypatch, row, place, named):
    monkeypatch.chdir(tmp_path)
    for name, scale in (("a", 1.25), ("b", 1.0)):
        write(tmp_path / name / place, lambda n, s=scale: row(n, s), every=scale * EVERY, arguments={trl: TRL}.get(row))
    assert main(["compare", "a", "b", "--save", "mine.yaml", "--json", "--verdict-only"]) == 0
    streams = capsys.readouterr()
    assert named in " ".join(streams.err.split())
    (ratio, *_) = json.loads(streams.out)["arms"][0]["ratios"]
    assert 1.1 < ratio["value"][0] <= 1.2501
    assert "import:\n      runs:\n      - a" in (tmp_path / "mine.yaml").read_text()


def test_numbers_are_exact_to_single_precision_and_agree_with_a_log_of_all_digits(tmp_path):
    writer = EventFileWriter(str(tmp_path / "run"))
    for event in events_of(verl, STEPS, BEGAN, EVERY, None):
        writer.add_event(event)
    writer.close()
    found = read(tmp_path / "run")
    assert found.format == "tensorboard" and found.tree is None and list(found.read.records) == list(STEPS)
    for step, record in found.read.records.items():
        assert {name: record.scalars[name] for name in verl(step)} == {n: single(v) for n, v in verl(step).items()}
        assert (
            abs(record.scalars["timing_s/gen"] - verl(step)["timing_s/gen"]) <= record.rounding["timing_s/gen"] < 1e-6
        )
    log = tmp_path / "verl.jsonl"
    log.write_text("".join(json.dumps({"step": step, "data": verl(step)}) + "\n" for step in STEPS))
    joined = merged([found.read, read(log).read], "run")
    assert joined.records[3].scalars["timing_s/gen"] == verl(3)["timing_s/gen"], "the more precise one counts"


def test_the_arguments_of_the_run_are_its_configuration_without_secrets(tmp_path):
    file = write(tmp_path / "a", trl, arguments=TRL)
    assert format_of(str(file)) == "tensorboard"
    assert read(file).config == TRL | {"hub_token": "[hidden]"}
    moved = file.rename(tmp_path / "renamed.bin")
    assert list(read(moved).read.records) == list(STEPS), "it is known by its content"


@pytest.mark.parametrize("row", [trl, own])
@pytest.mark.parametrize("places", [("", ""), ("runs/Jan31_10-00-00_host", "runs/Feb01_10-00-00_host")])
def test_a_later_file_is_the_life_after_a_restart(tmp_path, row, places):
    write(tmp_path / places[0], row, range(1, 21), BEGAN)
    write(tmp_path / places[1], lambda step: row(step, 2.0), range(16, 31), BEGAN + 1000)
    (tmp_path / places[1] / f"events.out.tfevents.{BEGAN + 500}.host.4711.0").touch()
    found = read(tmp_path).read
    assert list(found.records) == list(STEPS) and found.repeated == set(range(16, 21))
    assert [step for step, record in found.records.items() if record.resumed] == [16]
    time = "train/step_time" if row is trl else "timing_s/time/total"
    assert found.records[20].scalars[time] > found.records[15].scalars[time] * 1.5, "the later one counts"


def test_rows_of_several_steps_are_means_of_as_many(tmp_path):
    every_fifth = range(5, 101, 5)
    write(tmp_path / "trl", trl, every_fifth)
    write(tmp_path / "sft", sft, every_fifth, every=60.0)
    assert {record.scalars[STEPS_LOGGED] for record in read(tmp_path / "trl").read.records.values()} == {5.0}
    clock = read(tmp_path / "sft").read.records
    assert list(clock) == list(range(10, 101, 5)), "when the first one began is not known"
    assert {(r.scalars[WALL], r.scalars[STEPS_LOGGED]) for r in clock.values()} == {(12.0, 5.0)}


def test_a_last_record_that_is_cut_off_is_a_caveat_and_damage_a_warning(tmp_path):
    file = write(tmp_path / "a", verl)
    raw = file.read_bytes()
    file.write_bytes(raw[:-5])
    found = read(file)
    assert list(found.read.records) == list(STEPS) and "last record is cut off" in said(found, "value-cut-off")[0]
    file.write_bytes(raw[: len(raw) // 2] + b"\0\0\0\0" + raw[len(raw) // 2 + 4 :])
    found = read(file)
    assert 10 < len(found.read.records) < 20 and "is damaged, and the" in said(found, "corrupt-line")[0]


def two_runs(folder):
    write(folder, own)
    write(folder, own, began=BEGAN + 1000)


def two_folders(folder):
    write(folder / "one", own)
    write(folder / "two", own)


def twice_in_a_file(folder):
    write(folder, own, [*STEPS, *STEPS])


def without_steps(folder):
    write(folder, own, [0] * 30)


def texts(folder):
    write(folder, lambda step: {}, arguments=TRL)


def empty(folder):
    folder.mkdir()
    (folder / "events.out.tfevents.1.host").touch()


def one_step_by_the_clock(folder):
    write(folder, sft, [1])


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (two_runs, r"holds several runs, or several processes of one: step 1 is in .*host.4711.0, and step 1 in "),
        (two_folders, r"holds event files of 2 runs; name the folder of one: .*one, .*two"),
        (twice_in_a_file, r"several runs, or several processes of one: 30 steps \(1 to 30\) come again"),
        (without_steps, r"all its scalars are of step 0"),
        (texts, r"holds no event files of TensorBoard with scalars .*1 here"),
        (empty, r"holds no event files of TensorBoard with scalars .*1 here"),
        (
            one_step_by_the_clock,
            r"wall_time is a clock with 1 time; a step's seconds are the difference of two",
        ),
    ],
)
def test_what_would_be_wrong_is_refused(tmp_path, made, message):
    made(tmp_path / "a")
    with pytest.raises(UserError, match=message):
        read(tmp_path / "a")


def test_a_named_column_counts_in_the_files_that_have_it_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a", own)
    write(tmp_path / "b", verl)
    assert main(["compare", "a", "b", "--verdict-only", "--step-seconds", "time/rollout"]) == 0
    said = capsys.readouterr().out
    assert "time/rollout is the step's seconds" in said and "b: verl (read as 0.8)" in said


def test_a_configuration_imports_a_folder_and_its_format_is_checked(tmp_path):
    write(tmp_path / "a", verl)
    (tmp_path / "run.log").write_text("step:1 - timing_s/gen:1.500 - timing_s/step:2.000\n")
    assert read_source(str(tmp_path / "a"), "tensorboard", (), Path("unused")).read.records
    for source, problem in (("run.log", "is verl-console by its content"), ("b", "holds no event files")):
        (tmp_path / "b").mkdir(exist_ok=True)
        with pytest.raises(UserError, match=problem):
            read_source(str(tmp_path / source), "tensorboard", (), Path("unused"))


def test_commands_that_read_no_event_file_do_not_load_its_reader():
    modules = "workflow.cli, workflow.commands.compare, workflow.config.entry"
    code = f"import sys, {modules}; print('tensorboard' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
