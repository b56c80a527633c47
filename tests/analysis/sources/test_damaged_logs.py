"""No line of a log crashes the importer: real lines are damaged, and make a table or one message."""

import json
import random
import tracemalloc
from pathlib import Path

import pytest

from analysis.imports.formats import read_source
from analysis.imports.source_check import trainers_by_data
from analysis.sources.wandb_api import RUN_FILE
from common.errors import UserError
from tests.analysis.imports_of import run_of
from tests.analysis.sources.other_logs import nemo_block, openrlhf_line, skyrl_block, skyrl_timers, slime_lines
from workflow.cli import main

ROOT = Path(__file__).resolve().parents[3]
VERL_LINE = (ROOT / "experiments" / "camino-2025-published" / "sglang-step3.log").read_text(encoding="utf-8").strip()
VERL_VALUES = {name: float(v) for name, _, v in (p.rpartition(":") for p in VERL_LINE.split(" - ")[1:])}
# As TRL 1.16 logs a step, and ms-swift 4.6 besides.
ROW = {
    "loss": 0.0012, "grad_norm": 0.125, "learning_rate": 9.9e-07, "num_tokens": 24576.0,
    "completions/mean_length": 512.5, "rewards/accuracy/mean": 0.25, "reward": 0.25, "kl": 1.5e-05, "step_time": 13.4,
    "epoch": 0.01,
}  # fmt: skip


def row(step):
    return ROW | {"num_tokens": 24576.0 * step, "epoch": 0.01 * step, "step_time": 13.0 + step / 8}


def swift_row(step):
    told = {"global_step/max_steps": f"{step}/25", "elapsed_time": f"{13 * step}s", "train_speed(s/it)": "13.5"}
    return {k: v for k, v in row(step).items() if k != "step_time"} | told


def bar(step):
    return f" {4 * step}%|█▏        | {step}/25 [00:41<05:02, 13.70s/it]"


def phases(step):
    return "".join(f"{step},timing_s/{name},{s:.2f}\n" for name, s in (("step", 408.19 + step), ("gen", 382.91)))


STEPS = (1, 2, 3)
LOGS = {
    "verl-console": "".join(
        "(TaskRunner pid=411) " + VERL_LINE.replace("step:3 ", f"step:{s} ").replace("e_step:3", f"e_step:{s}") + "\n"
        for s in STEPS
    ),
    "verl-jsonl": "".join(json.dumps({"step": s, "data": VERL_VALUES}) + "\n" for s in STEPS),
    "trl-console": "".join(f"{row(s)}\n{bar(s)}\n" for s in STEPS),
    "swift-console": "".join(f"{swift_row(s)}\n" for s in STEPS),
    "swift-jsonl": "".join(json.dumps(swift_row(s)) + "\n" for s in STEPS),
    "trainer-state": json.dumps({"epoch": 1.0, "log_history": [row(s) | {"step": s} for s in STEPS]}, indent=1),
    "table": "run,step,phase,seconds\n" + "".join("a," + line for s in STEPS for line in phases(s).splitlines(True)),
    "wandb": "".join(
        json.dumps({"_step": s, "_timestamp": 1.7e9 + s, "_runtime": 1.0 * s, **VERL_VALUES, "training/global_step": s})
        + "\n"
        for s in STEPS
    ),
}
RELEASES = {"verl": "0.4.1", "swift": "4.6.0", "trl": "1.16.0"}
RELEASES |= {"nemo-rl": "0.5.0", "openrlhf": "0.9.9", "skyrl": "0.2.0", "slime": "0.3.1"}
TRAINERS = {form: form.partition("-")[0] for form in LOGS} | {
    "table": "verl",
    "wandb": "verl",
    "trainer-state": "trl",
    "nemo-rl-console": "nemo-rl",
    "openrlhf-console": "openrlhf",
    "skyrl-console": "skyrl",
    "skyrl-timers": "skyrl",
    "slime-console": "slime",
}
# What has crashed readers: half a character, numbers without end, deep nesting, marks of encodings, other digits.
ODD = (
    "\\ud800", "9" * 400, "[" * 2_000, '{"a":' * 2_000, "\ufeff", "\0", "1e999", "-inf", "NaN", "٣", "²", "'", '"',
    "\r",
)  # fmt: skip
INSERTS = [piece.encode() for piece in (*ODD, "2147483648", "0", "-1", *LOGS.values())]
LOGS |= {
    "nemo-rl-console": "".join(nemo_block(s) for s in STEPS),
    "openrlhf-console": "".join(openrlhf_line(s) for s in STEPS),
    "skyrl-console": "".join(skyrl_block(s) for s in STEPS),
    "skyrl-timers": "Resuming from global_step: 3\n" + "".join(skyrl_timers() for _ in STEPS),
    "slime-console": "".join(slime_lines(s) for s in STEPS),
}
# Those that share their readers' parts are damaged less often.
TIMES = dict.fromkeys(list(LOGS)[-5:], 150)
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
    version = RELEASES[TRAINERS[form]]
    given, engine = "wandb:a/b/c" if form == "wandb" else str(source), "sglang" if form == "slime-console" else "vllm"
    return len(run_of(folder, [given], TRAINERS[form], engine, version=version, batch_size=16).table)


def read(tmp_path, content, name="log", form=None):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_source(str(path), form, (), tmp_path)


@pytest.mark.parametrize("bad", ['{"a\\ud800": 1}', '{"a": ' + "9" * 400 + "}", "[" * 20_000, '{"a":' * 20_000])
@pytest.mark.parametrize("form", ["verl-jsonl", "swift-jsonl"])
def test_a_line_that_no_table_can_hold_is_left_out_and_told(tmp_path, form, bad):
    lines = LOGS[form].splitlines(keepends=True)
    bad = bad if form == "swift-jsonl" or not bad.endswith("}") else json.dumps({"step": 2, "data": 0})[:-2] + bad + "}"
    swift = bad[:-1] + ', "loss": 0.1, "global_step/max_steps": "2/25"}' if bad.endswith("}") else bad
    found = read(tmp_path, lines[0] + (swift if form == "swift-jsonl" else bad) + "\n" + lines[2], form=form)
    assert list(found.read.records) == [1, 3]
    (told,) = [v for v in found.read.verdicts if v.code == "corrupt-line"]
    assert f"{tmp_path / 'log'}:2 cannot be read and was skipped" in told.text and len(told.text) < 300


@pytest.mark.parametrize("form", ["verl-jsonl", "swift-jsonl", "trainer-state", "trl-console", "verl-console"])
def test_a_mark_of_utf_8_before_a_log_is_no_part_of_it(tmp_path, form):
    found = read(tmp_path, "\ufeff" + LOGS[form])
    assert found.format == form and list(found.read.records) == [1, 2, 3]
    assert not [v for v in found.read.verdicts if v.code == "corrupt-line"]


@pytest.mark.parametrize("form", ["verl-jsonl", "swift-jsonl"])
def test_json_lines_that_were_cut_at_their_head_are_known_by_the_next_line(tmp_path, form):
    found = read(tmp_path, LOGS[form][40:])
    assert found.format == form and list(found.read.records) == [2, 3]
    assert [v.code for v in found.read.verdicts if v.code == "corrupt-line"] == ["corrupt-line"]


@pytest.mark.parametrize("form", sorted(LOGS.keys() - {"wandb"}))
def test_utf_16_gets_the_command_that_converts_it(tmp_path, form):
    with pytest.raises(UserError, match=r"is UTF-16 text.*: iconv -f UTF-16 -t UTF-8 \S+/a.csv > \S+/a-utf8.csv"):
        read(tmp_path, LOGS[form].encode("utf-16"), "a.csv")


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


SUFFIXES = {"trainer-state": ".json", "swift-jsonl": ".jsonl", "verl-jsonl": ".jsonl", "table": ".csv"}


@pytest.mark.parametrize("form", [form for form in LOGS if form != "wandb"])
def test_two_logs_without_a_flag_are_answered(tmp_path, monkeypatch, capsys, form):
    monkeypatch.chdir(tmp_path)
    names = [f"{name}{SUFFIXES.get(form, '.log')}" for name in ("before", "after")]
    for number, name in enumerate(names):
        (tmp_path / name).write_text(LOGS[form] + "\n" * number)
    assert main(["compare", *names, "--verdict-only", "--json"]) == 0, capsys.readouterr().err
    streams = capsys.readouterr()
    (told,) = json.loads(streams.out)["arms"]
    assert {told["arm"], told["baseline"]} in ({"before", "after"}, {"sglang-1", "sglang-2"}), told
    assert told["ratios"][0]["value"] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("phases", "found"),
    [
        (("step", "gen", "update_actor"), ["verl"]),
        (("total_step_time", "generation", "policy_training"), ["nemo-rl"]),
        (("step", "foo", "bar"), []),
    ],
)
def test_a_table_of_phases_is_of_the_trainer_whose_timers_it_has(tmp_path, phases, found):
    rows = "".join(f"1,{phase},{2.0 / number}\n" for number, phase in enumerate(phases, start=1))
    (tmp_path / "a.csv").write_text("step,phase,seconds\n" + rows)
    assert trainers_by_data(read_source(str(tmp_path / "a.csv"), None, (), None).read) == found
