"""verl's console lines, as verl 0.4.1 and later releases print them and as the world then bends them."""

import math
import pprint
import re
import subprocess

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from common.errors import UserError
from trainers.verl.console import read_verl_console

STEP = {
    "actor/kl_loss": -0.25,
    "response_length/mean": 17435.6875,
    "response_length/max": 31744.0,
    "training/global_step": 3,
    "timing_s/gen": 382.9134,
    "timing_s/testing": 1.5,
    "timing_s/step": 408.1904,
    "perf/throughput": 86.906,
}
GREY, OFF = "\x1b[36m", "\x1b[0m"
BAR = "Training Progress:   1%|▏         | 3/290 [41:02<65:25:40, 820.70s/it]"


def line(step, values, rounded=True):
    """A step as aggregate_logger.py prints it: up to 0.4.1 with three decimals, later in full."""
    shown = (f"{k}:{v:.3f}" if rounded else f"{k}:{v!r}" for k, v in values.items())
    return " - ".join([f"step:{step}", *shown])


def read(tmp_path, text, name="run.log"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_verl_console(path)


def codes(imported):
    return [v.code for v in imported.read.verdicts]


def test_a_line_of_0_4_1_carries_half_of_the_third_decimal(tmp_path):
    found = read(tmp_path, line(3, STEP) + "\n")
    record = found.read.records[3]
    assert record.scalars["timing_s/gen"] == 382.913 and record.scalars["actor/kl_loss"] == -0.25
    assert set(record.rounding.values()) == {0.0005} and set(record.rounding) == set(STEP)
    assert record.line == 1 and record.file == tmp_path / "run.log" and not found.read.verdicts


def test_a_step_with_a_validation_beside_it_is_a_step(tmp_path):
    """A line of a validation alone is none (verl's before training); with timings, or with rewards, it is a step."""
    validation = {"val-core/math/reward/mean@1": 0.25, "val-aux/num_turns/mean": 2.0}
    rewards = {f"critic/rewards/{name}": 0.5 for name in ("mean", "max", "min", "std", "median")}
    lines = [line(2, validation), line(3, validation | STEP), line(4, validation | rewards)]
    records = read(tmp_path, "\n".join(lines) + "\n").read.records
    assert list(records) == [3, 4]
    assert records[3].scalars["val-core/math/reward/mean@1"] == 0.25 and records[3].scalars["timing_s/step"] == 408.19


def test_a_line_in_full_carries_no_rounding(tmp_path):
    values = STEP | {"timing_s/ref": 1 / 3, "actor/lr": 1e-06}
    text = line(3, values, rounded=False) + " - a:np.float64(0.5) - b:np.int32(4) - c:np.float64(nan) - d:tensor(2.)\n"
    record = read(tmp_path, text).read.records[3]
    assert not record.rounding and record.scalars["timing_s/ref"] == 1 / 3 and record.scalars["actor/lr"] == 1e-06
    assert (record.scalars["a"], record.scalars["b"], record.scalars["d"]) == (0.5, 4.0, 2.0)
    assert math.isnan(record.scalars["c"])


@pytest.mark.parametrize(
    "prefix",
    [
        "(TaskRunner pid=4711) ",
        f"{GREY}(TaskRunner pid=4711){OFF} ",
        "(main_task pid=7, ip=10.0.0.1) ",
        f"{BAR}\r",
        BAR,
    ],
)
@pytest.mark.parametrize("suffix", ["", f"\r{BAR}", " [repeated 2x across cluster]", f" {BAR}", "\r"])
def test_prefixes_colours_and_bars_on_the_line(tmp_path, prefix, suffix):
    found = read(tmp_path, f"{prefix}{line(3, STEP)}{suffix}\n{prefix}\n")
    assert found.read.records[3].scalars == {k: round(v, 3) for k, v in STEP.items()} and not found.read.verdicts


@pytest.mark.parametrize("between", ["\n\n", "\n(Other pid=2) ", "\r"])
def test_only_the_next_line_of_the_same_process_continues_a_step(tmp_path, between):
    whole = line(3, STEP)
    found = read(tmp_path, f"(TaskRunner pid=1) {whole[:74]}{between}{whole[74:]}\n")
    assert len(found.read.records[3].scalars) == 2 and codes(found) == ["timings-missing"]


def test_a_line_that_a_terminal_has_wrapped_is_said_and_no_step(tmp_path):
    whole = line(3, STEP, rounded=False)
    rows = [whole[i : i + 60].rstrip() for i in range(0, len(whole), 60)]
    found = read(tmp_path, "\n".join([*rows, "(TaskRunner pid=1) saved", ""]))
    (said,) = found.read.verdicts
    assert said.code == "timings-missing" and "wrapped" in said.text


def test_what_only_looks_like_a_continuation_is_not_joined(tmp_path):
    for after in ("loss:0.5 - epoch:1", "INFO - epoch:1 - loss:0.5", "Traceback", "12", "a:b", "x - y - z"):
        found = read(tmp_path, f"{line(3, STEP)}\n{after}\n{line(4, STEP)}\nsaved: yes\n")
        assert found.read.records[3].scalars == {k: round(v, 3) for k, v in STEP.items()}, after
        assert list(found.read.records) == [3, 4] and not found.read.verdicts


@pytest.mark.parametrize("chars", [4096, 4300])
def test_a_line_cut_at_4096_characters_or_later_says_that_its_timings_are_missing(tmp_path, chars):
    many = {f"critic/number_{i}/mean": 0.123 for i in range(200)} | STEP
    cut = line(3, many)[:chars]
    assert "timing_s/step" not in cut
    found = read(tmp_path, f"{cut}\n{line(4, STEP)}\n")
    (said,) = [v for v in found.read.verdicts if v.code == "timings-missing"]
    assert f"run.log:1: step 3 has no timing_s/step, cut off after {chars} characters" in said.text
    assert "timing_s/step" in found.read.records[4].scalars


def test_zeros_that_a_crashed_node_left_end_a_line_that_was_cut(tmp_path):
    """A file system fills what was never written with zero bytes: here the end of step 2 and the head of step 3."""
    values = STEP | {"timing_s/step": 408.1904771, "perf/throughput": 86.9061234}
    whole = "".join(line(s, values | {"timing_s/gen": 300.25 + s}, rounded=False) + "\n" for s in (1, 2, 3, 4))
    at = whole.index("\nstep:3 -")
    found = read(tmp_path, whole[: at - 5] + "\0" * 16 + whole[at + 11 :])
    assert list(found.read.records) == [1, 2, 4] and codes(found) == ["value-cut-off"]
    assert found.read.records[2].scalars == {k: v for k, v in values.items() if k != "perf/throughput"} | {
        "timing_s/gen": 302.25
    }


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("between", [f"\n{GREY}(WorkerDict pid=8){OFF} loading: 3/4\n", "(WorkerDict pid=8) loading\n"])
@pytest.mark.parametrize("chars", range(1, 7))
def test_a_number_that_another_processs_line_cuts_is_left_out(tmp_path, chars, between, rounded):
    first, whole, last = (line(s, STEP | {"timing_s/gen": 750.25}, rounded) for s in (1, 2, 3))
    at = whole.index("750.25") + chars
    found = read(tmp_path, f"{first}\n{whole[:at]}{between}{whole[at:]}\n{last}\n")
    cut = found.read.records[2]
    assert "timing_s/gen" not in cut.scalars, "75.0 is not what was measured"
    assert cut.rounding.keys() <= cut.scalars.keys()
    assert codes(found) == ["value-cut-off", "timings-missing"]
    assert "run.log:2: step 2 is truncated in or after timing_s/gen" in found.read.verdicts[0].text


def test_the_timers_of_verl_0_1_are_no_cut(tmp_path):
    """Of its public log of Qwen2.5-0.5B on GSM8K, step 2: it times no whole step, under other names."""
    old = "critic/score/mean:0.000 - timing/gen:18.156 - timing/ref:5.372 - timing/values:5.673 - timing/adv:0.058"
    found = read(tmp_path, "".join(f"step:{s} - {old} - timing/update_actor:20.593\n" for s in (2, 3)))
    (said,) = found.read.verdicts
    assert said.code == "timings-missing" and "timing/gen" in said.text and "cut" not in said.text


@pytest.mark.parametrize("chars", range(1, 12))
def test_a_truncated_last_line_loses_the_number_it_was_cut_in(tmp_path, chars):
    whole = line(2, STEP)
    found = read(tmp_path, f"{line(1, STEP)}\n{whole[:-chars]}")
    last = found.read.records[2].scalars
    assert last["timing_s/step"] == 408.190 and "perf/throughput" not in last, "86.9 is not what was measured"
    assert [v.code for v in found.read.verdicts] == (["value-cut-off"] if chars < 6 else [])
    whole_in_full = line(2, STEP, rounded=False)
    found = read(tmp_path, f"{line(1, STEP, rounded=False)}\n{whole_in_full[:-1]}", "full.log")
    assert "perf/throughput" not in found.read.records[2].scalars


def test_a_last_line_without_its_end_counts_where_its_decimals_are_all_there(tmp_path):
    found = read(tmp_path, line(3, STEP))
    assert found.read.records[3].scalars["perf/throughput"] == 86.906 and not found.read.verdicts


def test_a_restart_repeats_steps_and_the_later_count(tmp_path):
    first = [line(s, STEP | {"timing_s/step": 400.0 + s}) for s in range(1, 6)]
    second = [line(s, STEP | {"timing_s/step": 500.0 + s}) for s in range(4, 7)]
    found = read(tmp_path, "\n".join([*first, "Setting global step to 3", *second, ""]))
    records = found.read.records
    assert [records[s].scalars["timing_s/step"] for s in range(1, 7)] == [401, 402, 403, 504, 505, 506]
    assert [s for s, r in records.items() if r.resumed] == [4] and found.read.repeated == {4, 5}
    assert codes(found) == ["duplicate-step"]
    assert "2 steps (4 to 5) once more" in found.read.verdicts[0].text
    assert "(for step 4: line 7, not line 4)" in found.read.verdicts[0].text


def test_a_restart_at_its_checkpoint_is_told_by_what_verl_prints(tmp_path):
    lines = [line(1, STEP), line(2, STEP), "(TaskRunner pid=9) Setting global step to 2", line(3, STEP), ""]
    found = read(tmp_path, "\n".join(lines))
    assert [r.resumed for r in found.read.records.values()] == [False, False, True] and not found.read.verdicts


def test_a_line_that_was_printed_twice_is_one(tmp_path):
    found = read(tmp_path, f"{line(1, STEP)}\n{line(1, STEP)}\n{line(2, STEP)}\n")
    assert list(found.read.records) == [1, 2] and not found.read.verdicts and not found.read.repeated


@pytest.mark.parametrize("steps", [(1, 2, 3, 1, 2), (3, 3), (1, 1), (5, 6, 7, 5)])
def test_several_runs_in_one_file_are_refused(tmp_path, steps):
    text = "".join(line(s, STEP | {"timing_s/step": 400.0 + n}) + "\n" for n, s in enumerate(steps))
    with pytest.raises(UserError, match=r"holds several runs.*split the file.*head -n \d+ \S+/run.log > \S+/run-1.log"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    "printed_as", ["step:{} - timing_s/step:0.001", "it prints step:{} - reward:0.5", "step:{} - hi"]
)
@pytest.mark.parametrize(("place", "step"), [(2, 1), (3, 1), (3, 2), (3, 3), (1, 1), (3, 900)])
@pytest.mark.parametrize("prefix", ["", "(TaskRunner pid=111) ", "(WorkerDict pid=222) "])
def test_what_a_response_prints_is_no_step(tmp_path, printed_as, place, step, prefix):
    """Before, among and behind the steps; of the trainer's own process or of a worker's."""
    lines = by(111, 1, 2, 3)
    lines.insert(place, f"{prefix}{printed_as.format(step)}\n")
    found = read(tmp_path, "".join(lines))
    assert [(s, r.scalars["timing_s/step"]) for s, r in found.read.records.items()] == [(1, 512), (2, 513), (3, 514)]
    assert not any(r.resumed for r in found.read.records.values()) and not found.read.repeated
    (told,) = found.read.verdicts
    assert told.code == "no-step-line" and told.level == ("warning" if step == 900 else "note")
    assert f"run.log:{place + 1} begins like step {step} and has" in told.text and "steps have 8" in told.text


def test_steps_with_fewer_or_more_numbers_are_steps(tmp_path):
    """A critic's warm-up leaves the actor's out, a validation adds its own: none of these is a response."""
    validated = STEP | {f"val-core/set_{n}/reward/mean@1": 0.5 for n in range(60)}
    warm_up = {k: v for k, v in STEP.items() if not k.startswith(("actor/", "response_length/"))}
    found = read(tmp_path, "".join(line(s, v) + "\n" for s, v in enumerate([warm_up, validated, STEP, validated], 1)))
    assert list(found.read.records) == [1, 2, 3, 4] and not found.read.verdicts


def test_a_line_of_its_own_that_a_second_process_prints_for_a_step_does_not_replace_it(tmp_path):
    """verl's fully_async trainer prints the rollouter's few numbers under the step's number."""
    text = "".join(f"{line(s, STEP)}\nstep:{s} - fully_async/rollouter/idle_ratio:0.250\n" for s in (1, 2, 3))
    found = read(tmp_path, text)
    assert [r.scalars["timing_s/step"] for r in found.read.records.values()] == [408.19] * 3 and not found.read.repeated
    assert codes(found) == ["no-step-line"] and "So do 2 more lines" in found.read.verdicts[0].text


def by(pid, *steps):
    return [f"{GREY}(TaskRunner pid={pid}){OFF} {line(s, STEP | {'timing_s/step': 400.0 + s + pid})}\n" for s in steps]


def mixed(one, other):
    return "".join(part for pair in zip(one, other, strict=True) for part in pair)


@pytest.mark.parametrize(
    "text",
    [
        mixed(by(111, 1, 2, 3), by(222, 21, 22, 23)),
        "".join(by(111, 1, 2, 3, 4)) + mixed(by(222, 3, 4, 5), by(111, 5, 6, 7)),
        mixed(by(111, 1, 2, 3), by(222, 1, 2, 3)),
    ],
)
def test_two_jobs_that_print_at_once_are_refused_with_the_commands_that_part_them(tmp_path, text):
    with pytest.raises(UserError, match=r"several runs at once: \(TaskRunner pid=111\)") as caught:
        read(tmp_path, text, "my run.log")
    command = re.search(r"each run by itself: (.*)", str(caught.value))[1]
    subprocess.run(["bash", "-c", command], check=True, cwd="/")
    for part, pid in (("my run-1.log", 111), ("my run-2.log", 222)):
        records = read_verl_console(tmp_path / part).read.records
        assert all(r.scalars["timing_s/step"] == 400.0 + s + pid for s, r in records.items()) and len(records) > 2


def config(name):
    rollout = {"name": "vllm", "enforce_eager": True}
    held = {"actor_rollout_ref": {"rollout": rollout}, "trainer": {"experiment_name": name}}
    return pprint.pformat(held, width=80) + "\n"


def test_another_experiments_banner_is_another_run(tmp_path):
    text = config("phi4-vllm") + line(1, STEP) + "\n" + config("phi4-sglang") + line(2, STEP) + "\n"
    with pytest.raises(UserError, match=r"names experiment 'phi4-vllm' and, from line 4, 'phi4-sglang'.*head -n 3"):
        read(tmp_path, text)
    again = config("phi4-vllm") + line(1, STEP) + "\n" + config("phi4-vllm") + line(2, STEP) + "\n"
    assert list(read(tmp_path, again).read.records) == [1, 2]


@pytest.mark.parametrize("second", ["(TaskRunner pid=3) ", "(TaskRunner pid=8) ", ""])
def test_the_commands_that_split_a_file_leave_each_run_its_configuration(tmp_path, second):
    first = "(TaskRunner pid=3) " if second else ""
    runs = {"a": [first, "noise", *config("phi4-vllm").splitlines(), line(1, STEP)]}
    runs["b"] = [second, "verl==0.4.1", *config("phi4-sglang").splitlines(), line(1, STEP)]
    text = "".join(prefix + part + "\n" for prefix, *parts in runs.values() for part in parts)
    with pytest.raises(UserError) as caught:
        read(tmp_path, text, "my run.log")
    command = re.search(r"each run by itself: (.*) \(if", str(caught.value))[1]
    subprocess.run(["bash", "-c", command], check=True, cwd="/")
    for part, name in (("my run-1.log", "phi4-vllm"), ("my run-2.log", "phi4-sglang")):
        half = read_verl_console(tmp_path / part)
        assert half.config["trainer"]["experiment_name"] == name and list(half.read.records) == [1]
    if second != first:
        assert half.versions == {"verl": "0.4.1"}, "what its Ray actor printed before is the run's own too"


@pytest.mark.parametrize(
    "stamp", ["", "2025-12-15T08:00:27.123456789Z stdout F ", "2025-12-15 08:00:27,042 ", "0: ", "[node01] "]
)
def test_the_printed_configuration_and_version_are_kept(tmp_path, stamp):
    """Behind what Kubernetes, a collector of logs or Slurm puts before each line, too."""
    banner = "".join(f"{stamp}{GREY}(TaskRunner pid=3){OFF} {part}\n" for part in config("x").splitlines())
    found = read(tmp_path, f"verl==0.4.1\n{banner}{stamp}(TaskRunner pid=3) {line(1, STEP)}\n")
    assert found.read.records[1].scalars["timing_s/gen"] == 382.913
    assert found.config["actor_rollout_ref"]["rollout"]["enforce_eager"] is True
    assert found.versions == {"verl": "0.4.1"} and found.format == "verl-console"


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("Successfully installed ray-2.47.1 verl-0.4.1 vllm-0.8.5", "0.4.1"),
        ("Processing ./verl-0.6.0-py3-none-any.whl", "0.6.0"),
        ("training verl version: 0.7.1", "0.7.1"),
        ("wandb: Syncing run grpo in project verl-0.4.1", None),
        ("cd /data/verl-0.4.1 && python3 -m verl.trainer.main_ppo", None),
        ("my-verl==0.4.1", None),
    ],
)
def test_a_version_is_what_pip_or_verl_says_and_no_name_of_a_folder_or_project(tmp_path, said, version):
    found = read(tmp_path, f"{said}\n(TaskRunner pid=3) {line(1, STEP)}\n")
    assert found.versions == ({"verl": version} if version else {})


CONFIGURATION = {
    "actor_rollout_ref": {
        "model": {"path": "it's/a {model}", "lora": None},
        "rollout": {"name": "vllm", "n": 2, "p": 1e-06},
    },
    "data": {"train_files": [f"part-{n}.parquet" for n in range(12)], "train_batch_size": 1, "shuffle": True},
    "template": "one line of a prompt that is long, \\n and wrapped\nand another one of them, with 'quotes' in it",
    "trainer": {"use_v1": True, "v1": {"trainer_mode": "separate_async"}, "experiment_name": "x"},
}


def printed(lines, prefix=""):
    return "".join(f"{prefix}{part}\n" for part in [*lines, line(1, STEP)])


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
    found = read(tmp_path, printed(lines))
    assert (
        found.config == CONFIGURATION
        or codes(found) == ["configuration-unread"]
        or not any(part.startswith("{'actor_rollout_ref'") for part in lines)
    )


def test_windows_line_ends_and_stray_bytes(tmp_path):
    found = read(tmp_path, b"\xff\x00junk\r\n" + line(1, STEP).encode() + b"\r\n")
    assert list(found.read.records) == [1] and not found.read.verdicts
