"""Consoles that are bent at every place: by a terminal's width, by what responses print, by lines that lose a part."""

import pprint
import re

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from analysis.imports.formats import read_source

STEP = {
    "actor/kl_loss": -0.25, "response_length/mean": 17435.6875, "response_length/max": 31744.0,
    "training/global_step": 3, "timing_s/gen": 382.9134, "timing_s/testing": 1.5, "timing_s/step": 408.1904,
    "perf/throughput": 86.906,
}  # fmt: skip
ROW = {
    "loss": 0.0, "grad_norm": 0.125, "learning_rate": 1e-06, "completions/mean_length": 100.5,
    "rewards/accuracy/mean": 0.25, "reward": 0.25,
}  # fmt: skip


def line(step, values):
    """A step as verl 0.4.1 prints it."""
    return " - ".join([f"step:{step}", *(f"{name}:{value:.3f}" for name, value in values.items())])


def read(tmp_path, text):
    path = tmp_path / "run.log"
    path.write_text(text)
    return read_source(str(path), None, (), None)


def codes(found):
    return [verdict.code for verdict in found.read.verdicts]


@pytest.mark.parametrize("told", [{}, {"global_step/max_steps": "3/20"}])
def test_rows_that_a_terminal_broke_are_read_at_any_width(tmp_path, told):
    """As a log is pasted: broken within names and numbers, the spaces at the breaks lost."""

    def of(found):
        return [(one.step, one.scalars) for one in found.read.records.values()], codes(found), found.format

    lines = []
    for step in (1, 2, 3):
        row = ROW | {"step_time": 3.25 + step / 7, "epoch": 0.1 * step}
        row |= {name: value.replace("3", str(step)) for name, value in told.items()}
        lines += [str(row), f" {5 * step:3d}%|█▌        | {step}/20 [00:41<05:02, 13.70s/it]"]
    whole = of(read(tmp_path, "\n".join([*lines, ""])))
    assert [step for step, _ in whole[0]] == [1, 2, 3]
    for width in range(50, max(map(len, lines)) + 2):
        pasted = [line[at : at + width].rstrip() for line in lines for at in range(0, len(line), width)]
        assert of(read(tmp_path, "\n".join([*pasted, ""]))) == whole, width


@pytest.mark.parametrize(
    "printed_as", ["step:{} - timing_s/step:0.001", "it prints step:{} - reward:0.5", "step:{} - hi"]
)
@pytest.mark.parametrize(("place", "step"), [(2, 1), (3, 1), (3, 2), (3, 3), (1, 1), (3, 900)])
@pytest.mark.parametrize("prefix", ["", "(TaskRunner pid=111) ", "(WorkerDict pid=222) "])
def test_what_a_response_prints_is_no_step(tmp_path, printed_as, place, step, prefix):
    """Before, among and behind the steps; of the trainer's own process or of a worker's."""
    lines = [f"\x1b[36m(TaskRunner pid=111)\x1b[0m {line(s, STEP | {'timing_s/step': 511.0 + s})}\n" for s in (1, 2, 3)]
    lines.insert(place, f"{prefix}{printed_as.format(step)}\n")
    found = read(tmp_path, "".join(lines))
    assert [(s, r.scalars["timing_s/step"]) for s, r in found.read.records.items()] == [(1, 512), (2, 513), (3, 514)]
    assert not any(r.resumed for r in found.read.records.values()) and not found.read.repeated
    (told,) = found.read.verdicts
    assert told.code == "no-step-line" and told.level == ("warning" if step == 900 else "note")
    assert f"run.log:{place + 1} begins like step {step} and has" in told.text and "steps have 8" in told.text


CONFIGURATION = {
    "actor_rollout_ref": {
        "model": {"path": "it's/a {model}", "lora": None},
        "rollout": {"name": "vllm", "n": 2, "p": 1e-06},
    },
    "data": {"train_files": [f"part-{n}.parquet" for n in range(12)], "train_batch_size": 1, "shuffle": True},
    "template": "one line of a prompt that is long, \\n and wrapped\nand another one of them, with 'quotes' in it",
    "trainer": {"use_v1": True, "v1": {"trainer_mode": "separate_async"}, "experiment_name": "x"},
}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.integers(0, 21), keep=st.floats(0.0, 0.99), other=st.sampled_from(["", " WARNING: slow"]), left=st.booleans()
)
def test_a_configuration_that_is_not_whole_is_reported(tmp_path, at, keep, other, left):
    """A line loses its beginning or its end, perhaps to another program's text."""
    lines = pprint.pformat(CONFIGURATION, width=60).splitlines()
    cut = int(len(lines[at]) * keep)
    part = lines[at][cut:] if left else lines[at][:cut]
    lines[at] = other + part if left else part + other
    assume(re.search(r"': |^\s+'", lines[at]))  # nothing else shows that a setting was there
    found = read(tmp_path, "\n".join([*lines, line(1, STEP), ""]))
    assert (
        found.config == CONFIGURATION
        or codes(found) == ["configuration-unread"]
        or not any(part.startswith("{'actor_rollout_ref'") for part in lines)
    )
