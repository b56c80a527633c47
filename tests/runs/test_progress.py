"""What a head tells of a run's progress: a bounded number of lines."""

import json

import pytest

from common.contracts import MetricsLine
from trainers.verl.driver.step_hooks import step_line as verls_line
from workflow.job.stopping import Watchdog
from workflow.runs.orders import order_of
from workflow.runs.progress import MOST_PARTS, JobReporter, PrintedSteps, Progress, StepReader, without_new_step

from .make_runs import MadeRun

pytestmark = pytest.mark.promise("repeated-attempts-without-a")


def told(tmp_path, steps, capsys):
    """What is told of a run of so many steps where each step is seen by itself, as on a slow machine."""
    made = MadeRun(tmp_path, "arm-s0", steps=steps).job().attempt()
    reporter = JobReporter(made.paths, order_of(made.paths).content | {"limits": {"stop_grace_s": 600}})
    reporter.report()
    with made.paths.attempt(1).metrics.open("a") as metrics:
        for step in range(1, steps + 1):
            metrics.write(json.dumps({"step": step, "phases": {"step": 300.0}, "scalars": {}}) + "\n")
            metrics.flush()
            reporter.report(last=step == steps)
    return capsys.readouterr().err.splitlines()


def test_a_short_run_has_a_line_for_its_first_and_its_last_step(tmp_path, capsys):
    assert told(tmp_path, 12, capsys)[1:] == [
        "arm-s0: step 1/12, 300.00 s, about 55 min left",
        "arm-s0: step 12/12, 300.00 s, last step",
    ]


@pytest.mark.parametrize("steps", [1, 5, 39, 100, 2000])
def test_the_lines_of_a_run_are_bounded_whatever_its_length(tmp_path, capsys, steps):
    lines = told(tmp_path, steps, capsys)
    assert len(lines) <= 2 + MOST_PARTS and lines[-1].endswith(f"step {steps}/{steps}, 300.00 s, last step"), lines
    if steps == 2000:
        assert [line.split()[2] for line in lines[1:4]] == ["1/2000,", "200/2000,", "400/2000,"]


def line_of(kind, step):
    """A step's line as this kind of trainer writes it."""
    if kind == "verl":
        return dict(verls_line({"timing_s/step": 400.0}, step, None, resumed=False))
    if kind == "replay":
        lengths = {"response_length": [1]}
        return dict(
            MetricsLine(step=step, time=0.0, resumed=False, phases={"step": 400.0}, scalars={}, samples=lengths)
        )
    if kind == "without a time":
        return {"step": step, "phases": {}, "scalars": {}}
    return {"step": step, "phases": {"step": 300.0}, "scalars": {"between_steps_s": 100.0}}  # StepLog's


@pytest.mark.parametrize("kind", ["phases", "replay", "verl", "without a time"])
def test_the_steps_of_every_trainer_count(tmp_path, kind):
    made = MadeRun(tmp_path, "arm-s0", steps=100).job().attempt().attempt(2)
    for attempt, steps in zip(made.paths.attempts(), (range(1, 11), range(11, 21)), strict=True):
        attempt.metrics.write_text("".join(json.dumps(line_of(kind, step)) + "\n" for step in steps))
    seconds = 0.0 if kind == "without a time" else 400.0
    metrics = made.paths.attempt(2).metrics
    assert StepReader(metrics).new_steps() == [(step, seconds) for step in range(11, 21)]
    assert without_new_step(made.paths.attempts()) == 0
    assert (Progress(StepReader(metrics), 100).poll() or "").startswith(f"step 20/100, {seconds:.2f} s")
    watchdog = Watchdog(metrics, hang_factor=10, hang_min_s=5, first_step_s=2)
    assert all(watchdog.tick(1.0) is None for _ in range(4)), "its first step is done"


def script(tmp_path, *consoles):
    """A run of a user's script, and what each of its lives has printed."""
    made = MadeRun(tmp_path, "arm-s0").job()
    for number, text in enumerate(consoles, start=1):
        made.attempt(number)
        attempt = made.paths.attempt(number)
        spec = {"run_id": "arm-s0", "workload": {}, "spread": "own", "trainer_args": {"resume": "script"}}
        attempt.spec.write_text(json.dumps(spec))
        attempt.console.write_text(text)
    return made.paths.attempts()


BAR = "  3%|3         | {}/400 [01:02<30:00, 5.10s/it]\r"


@pytest.mark.parametrize(
    ("text", "steps", "of"),
    [
        (
            "step:1 - timing_s/gen:0.3 - timing_s/step:878.9 - perf/time_per_step:7\nstep:2 - timing_s/step:800.0\n",
            [(1, 878.9), (2, 800)],
            None,
        ),
        ("step:1 - timing_s/step:878.9\nstep:2 - timing_s/st", [(1, 878.9)], None),
        (BAR.format(11) + BAR.format(12), [(11, 5.1), (12, 5.1)], 400),
        ("Training Progress:" + BAR.format(3), [(3, 5.1)], 400),
        ("Loading checkpoint shards: 100%|##########| 4/4 [00:05<00:00, 1.30s/it]\n", [], None),
        ("timing_s/step:12 and global_step:7\n", [], None),
    ],
)
def test_the_steps_that_a_script_prints_are_read_while_it_runs(tmp_path, text, steps, of):
    (attempt,) = script(tmp_path, text)
    reader = PrintedSteps(attempt.console)
    assert reader.new_steps() == steps and reader.steps == of
    with attempt.console.open("a") as console:
        console.write("\nstep:500 - timing_s/step:1\n")
    assert reader.new_steps()[-1] == (500, 1.0)


def test_a_script_that_is_killed_without_grace_has_got_on(tmp_path):
    step = "step:{} - timing_s/step:5\n"
    assert without_new_step(script(tmp_path / "1", *[step.format(40 * life) for life in range(1, 8)])) == 0
    assert without_new_step(script(tmp_path / "2", *["it says nothing of steps\n"] * 7)) == 0
    assert without_new_step(script(tmp_path / "3", *[step.format(40)] * 7)) == 6, "the same step in each life"
    assert without_new_step(script(tmp_path / "4", *[""] * 7)) == 7
    failed = script(tmp_path / "5", *["an error\n"] * 7)
    for attempt in failed:
        attempt.exit.write_text('{"kind": "failed"}')
    assert without_new_step(failed) == 7
