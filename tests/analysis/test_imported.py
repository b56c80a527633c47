"""Runs that were trained elsewhere, from their sources to the tables; and the article's numbers."""

import json
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from analysis.counted import wide_steps
from analysis.imports.__main__ import main
from analysis.imports.formats import read_source
from analysis.runs import read_run
from analysis.steps import ChosenStep, read_steps
from analysis.tokens import add_known_tokens
from analysis.wide import BAD_TIME
from common.files import fingerprint_of
from trainers.logs.record import StepRecord

LOG = (
    "step:3 - response_length/mean:17435.688 - response_length/max:31744.000 - prompt_length/mean:301.312 - "
    "timing_s/generate_sequences:380.170 - timing_s/reshard:2.311 - timing_s/gen:382.913 - timing_s/reward:1.198 - "
    "timing_s/old_log_prob:4.186 - timing_s/ref:3.621 - timing_s/adv:0.002 - timing_s/update_actor:16.263 - "
    "timing_s/step:408.190 - perf/total_num_tokens:283792.000\n"
)


def spec_of(arm, sources, trainer="verl", engine=None, run_id=None, seed=0, experiment="x", **facts):
    known = {"format": None, "version": "0.4.1", "mode": "", "gpu": None, "nodes": None, "gpus_per_node": None}
    known |= {"tensor_parallel": None, "model": None, "batch_size": None, "max_response_length": None}
    spec = {
        "spec_version": 1, "experiment": experiment, "run_id": run_id or f"{arm}-s{seed}", "arm": arm,
        "trainer": trainer, "engine": engine or arm, "stack": "", "seed": seed, "factors": {}, "workload": {},
        "options": {}, "env": {}, "trainer_args": {},
        "import": {"sources": [str(source) for source in sources], **known, **facts},
    }  # fmt: skip
    return spec | {"fingerprint": fingerprint_of(spec)}


def imported(results, spec):
    """The run's folder, its table and what stands beside the table."""
    folder = results / "runs" / spec["run_id"]
    assert main([json.dumps(spec), "--out", str(folder / "steps.parquet")]) == 0
    table, metadata = read_steps(folder / "steps.parquet")
    return table.to_pandas(), metadata, json.loads((folder / "imported.json").read_text())


def failure(tmp_path, spec, capsys):
    out = tmp_path / "failed" / "steps.parquet"
    assert main([json.dumps(spec), "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "Traceback" not in error and not out.exists()
    return error


def write(tmp_path, text, name="run.log"):
    path = tmp_path / name
    path.write_text(text)
    return path


def verl_lines(steps, first=1):
    """Lines with three decimals, from seconds by timer."""
    shown = []
    for number, seconds in enumerate(steps, start=first):
        values = " - ".join(f"timing_s/{k}:{v:.3f}" for k, v in seconds.items())
        shown.append(f"(TaskRunner pid=1) step:{number} - critic/score/mean:0.250 - {values}\n")
    return "".join(shown)


PLAIN = {"gen": 8.0, "update_actor": 1.0, "step": 9.0}


def codes(metadata):
    return [v["code"] for v in metadata["verdicts"]]


def said(metadata, code):
    return next(v["text"] for v in metadata["verdicts"] if v["code"] == code)


def wide_of(results, *specs, warmup=0):
    runs = [read_run(results, spec["run_id"], None)[0] for spec in specs]
    return runs, *wide_steps(runs, warmup)


def test_a_long_run_is_written_in_groups_of_rows(tmp_path, monkeypatch):
    spec = spec_of("vllm", [write(tmp_path, verl_lines([PLAIN] * 9 + [PLAIN | {"adv": 0.25}]))])
    whole, about, _ = imported(tmp_path / "one", spec)
    monkeypatch.setattr("analysis.steps.ROWS_AT_A_TIME", 9)
    parts, metadata, _ = imported(tmp_path / "two", spec)
    assert parts.equals(whole) and metadata == about
    file = tmp_path / "two" / "runs" / "vllm-s0" / "steps.parquet"
    assert [pq.ParquetFile(file).metadata.row_group(n).num_rows for n in range(4)] == [12, 12, 12, 5]
    one, two = (wide_of(tmp_path / name, spec)[1] for name in ("one", "two"))
    pd.testing.assert_frame_equal(one, two)
    assert one["timing_s/step/adv"].dropna().tolist() == [0.25]


def test_a_missing_version_is_read_from_the_source_or_from_its_timers(tmp_path):
    told = write(tmp_path, "verl==0.4.1\n" + verl_lines([PLAIN]))
    _, metadata, end = imported(tmp_path / "res", spec_of("vllm", [told], version=None))
    assert metadata["timers"] == "verl 0.4.1" and end["versions"] == {"verl": "0.4.1"}
    _, metadata, _ = imported(tmp_path / "res", spec_of("vllm", [told], version="0.5.0"))
    assert codes(metadata) == ["version-differs"] and metadata["timers"] == "verl 0.5"
    silent = write(tmp_path, verl_lines([PLAIN]), "silent.log")
    _, metadata, end = imported(tmp_path / "res", spec_of("vllm", [silent], version=None))
    assert codes(metadata) == ["release-by-data"] and end["versions"] == {}
    text = said(metadata, "release-by-data")
    assert text.endswith("does not name its release of verl. Its timers are read as those of verl 0.8")
    _, metadata, end = imported(tmp_path / "res", spec_of("vllm", [silent], version="0.2.0"))
    assert metadata["timers"] == "verl 0.3" and end["versions"] == {"verl": "0.2.0"}
    assert "the timers of verl 0.2.0 are not declared (declared: 0.3, " in said(metadata, "release-by-data")


RESHARD = {"gen": 8.0, "reshard": 0.5, "update_actor": 1.0, "step": 9.5}


def test_the_release_is_the_newest_that_knows_the_timers_and_whose_sums_close(tmp_path):
    """verl times a reshard up to 0.6."""
    spec = spec_of("vllm", [write(tmp_path, verl_lines([RESHARD] * 5))], version=None)
    _, metadata, _ = imported(tmp_path / "res", spec)
    assert metadata["timers"] == "verl 0.6" and "read as those of verl 0.6" in said(metadata, "release-by-data")
    # 1 s more than the step: in no release do the sums close.
    spec = spec_of("vllm", [write(tmp_path, verl_lines([RESHARD | {"gen": 9.5}] * 5))], version=None)
    _, metadata, _ = imported(tmp_path / "res", spec)
    assert "although phases are longer there than their parent" in said(metadata, "release-by-data")


def test_without_a_release_the_seconds_show_where_a_checkpoint_lies(tmp_path):
    """verl moved it out of the step and back again."""
    inside, outside = ({"gen": 8.0, "save_checkpoint": 5.0, "step": step} for step in (13.1, 8.1))
    for name, saving, place in (("in", inside, "step/save_checkpoint"), ("out", outside, "save_checkpoint")):
        log = write(tmp_path, verl_lines([{"gen": 8.0, "step": 8.1}, saving] * 6), f"{name}.log")
        spec = spec_of("vllm", [log], version=None)
        table, _, _ = imported(tmp_path / name, spec)
        assert set(table.loc[table["value"] == 5.0, "name"]) == {place}
        _, wide, _ = wide_of(tmp_path / name, spec)
        assert wide["counted"].all() and wide["timing_s/step"].tolist() == [8.1] * 12


def test_a_source_that_grows_while_it_is_read_is_told(tmp_path, capsys, monkeypatch):
    log = write(tmp_path, verl_lines([PLAIN]))
    spec = spec_of("vllm", [log])

    def growing(source, *rest):
        read = read_source(source, *rest)
        log.write_text(verl_lines([PLAIN, PLAIN]))
        return read

    monkeypatch.setattr("analysis.imports.import_run.read_source", growing)
    assert "run.log changed while it was read" in failure(tmp_path, spec, capsys)


def test_steps_that_lie_apart_are_a_verdict(tmp_path):
    text = "".join(verl_lines([PLAIN], first=s) for s in (10, 20, 30))
    _, metadata, _ = imported(tmp_path / "res", spec_of("vllm", [write(tmp_path, text)]))
    assert "only every 10th step is there, from 10 to 30" in said(metadata, "steps-apart")


@pytest.mark.parametrize("wrong", ["nan", "inf", "-8.000", "1700000000.000"])
@pytest.mark.parametrize("timer", ["gen", "step"])
def test_a_time_that_cannot_be_is_left_out_and_told(tmp_path, wrong, timer):
    odd = verl_lines([PLAIN], first=2).replace(f"timing_s/{timer}:{PLAIN[timer]:.3f}", f"timing_s/{timer}:{wrong}")
    text = verl_lines([PLAIN]) + odd + verl_lines([PLAIN], first=3)
    spec = spec_of("vllm", [write(tmp_path, text)])
    imported(tmp_path / "res", spec)
    _, wide, verdicts = wide_of(tmp_path / "res", spec)
    assert wide.set_index("step")["left_out"].to_dict() == {1: "", 2: BAD_TIME, 3: ""}
    assert [v.code for v in verdicts] == ["step-left-out"] and "step 2" in verdicts[0].text


def test_a_step_whose_timings_are_missing_is_left_out_and_told(tmp_path):
    text = verl_lines([PLAIN]) + "step:2 - critic/score/mean:0.250 - timing_s/gen:1.000\n" + verl_lines([PLAIN], 3)
    spec = spec_of("vllm", [write(tmp_path, text)])
    _, metadata, _ = imported(tmp_path / "res", spec)
    assert "step 2 has no timing_s/step" in said(metadata, "timings-missing")
    _, wide, verdicts = wide_of(tmp_path / "res", spec)
    assert wide.set_index("step")["left_out"].to_dict() == {1: "", 2: BAD_TIME, 3: ""}
    assert [v.code for v in verdicts] == ["step-left-out"]


def test_no_step_time_at_all_is_an_error(tmp_path, capsys):
    lines = "step:1 - timing_s/gen:1.000 - timing_s/ref:2.000\n"
    error = failure(tmp_path, spec_of("vllm", [write(tmp_path, lines)]), capsys)
    assert (
        "none of its 1 steps has the time of the whole step (timing_s/step; its timers are step/gen, step/ref)" in error
    )
    assert "the capture truncated the line" in error, "what the log's own verdict says of it"
    lines = "(main_task pid=27483) step:3 - timing/gen:12.597 - timing/ref:0.522 - critic/kl:0.016\n"
    error = failure(tmp_path, spec_of("vllm", [write(tmp_path, lines)]), capsys)
    assert "its timers are those of verl 0.1" in error and "no timers" not in error


@pytest.mark.parametrize(("off", "found"), [(0.0014, []), (0.0040, ["children-exceed-parent"])])
def test_children_may_exceed_their_parent_by_what_rounding_hid(tmp_path, off, found):
    """Three values with three decimals hide up to 1.5 ms, above the millisecond of two clocks."""
    seconds = {"gen": 0.5, "update_actor": 0.5 + 0.001 + off, "step": 1.0}
    spec = spec_of("vllm", [write(tmp_path, verl_lines([seconds, seconds]))])
    _, metadata, _ = imported(tmp_path / "res", spec)
    assert codes(metadata) == found
    assert not found or "The same in 1 more step (2); they are left out" in said(metadata, "children-exceed-parent")
    _, wide, _ = wide_of(tmp_path / "res", spec)
    assert (wide["left_out"] == "").all() == (not found)
    assert wide["rounding/step/gen"].tolist() == [0.0005] * 2


def test_a_restart_between_two_sources_is_one_as_within_a_log(tmp_path):
    again = [{**PLAIN, "gen": 9.0, "step": 10.0}]
    lives = [write(tmp_path, verl_lines(again * 2, first), f"{first}.log") for first in (3, 1, 5)]
    spec = spec_of("vllm", lives)
    _, metadata, _ = imported(tmp_path / "res", spec)
    assert codes(metadata) == ["one-run"] and "started again at step 3, 5: the first" in said(metadata, "one-run")
    _, wide, _ = wide_of(tmp_path / "res", spec)
    assert wide.loc[wide["left_out"] != "", "step"].tolist() == [3, 5]


def test_tokens_are_as_exact_as_the_means(tmp_path):
    line = "step:{} - response_length/mean:{} - prompt_length/mean:50.000 - timing_s/gen:1.000 - timing_s/step:2.000\n"
    text = line.format(1, "100.125") + line.format(2, "1000.333")
    spec = spec_of("vllm", [write(tmp_path, text)], batch_size=4096)
    frame, _, _ = imported(tmp_path / "res", spec)
    tokens = frame[frame["name"] == "response_tokens"].set_index("step")
    assert tokens["value"].tolist() == pytest.approx([100.125 * 4096, 1000.333 * 4096])
    assert tokens["rounding"].tolist() == pytest.approx([0.0005 * 4096] * 2)
    _, wide, _ = wide_of(tmp_path / "res", spec)
    assert wide["response_tokens"].notna().all(), "so that there is a speed per token"


def test_the_number_of_completions_that_was_logged_counts_over_the_one_declared(tmp_path):
    logged = LOG.replace("step:3", "step:{}")
    spec = spec_of("sglang", [write(tmp_path, logged.format(3) + logged.format(4))], batch_size=64)
    frame, metadata, _ = imported(tmp_path / "res", spec)
    assert frame[frame["name"] == "response_tokens"]["value"].tolist() == [278971, 278971]
    told = said(metadata, "batch-size-contradicted")
    assert "declared batch_size is 64, but the logged tokens are those of 16 completions (step 3, 4)" in told
    _, metadata, _ = imported(tmp_path / "again", spec_of("sglang", spec["import"]["sources"], batch_size=16))
    assert not metadata["verdicts"]


@pytest.mark.parametrize(("counts", "known"), [("", False), (" - train/num_gen_batches:1.000", True)])
def test_of_completions_that_are_discarded_uncounted_the_tokens_are_not_known(tmp_path, counts, known):
    """DAPO: a step's time holds batches that its tokens do not."""
    held = {"actor_rollout_ref": {"model": {"path": "m"}}, "trainer": {"experiment_name": "dapo"}}
    config = f"{held | {'algorithm': {'filter_groups': {'enable': True}}}}\n"
    line = LOG.replace("step:3", "step:{}").rstrip("\n") + counts + "\n"
    spec = spec_of("sglang", [write(tmp_path, config + line.format(3) + line.format(4))])
    frame, metadata, _ = imported(tmp_path / "res", spec)
    assert ("response_tokens" in set(frame["name"])) == known
    if not known:
        assert "its algorithm.filter_groups.enable is true" in said(metadata, "tokens-unknown")


def trl_window(end, mean, tokens=None):
    told = {} if tokens is None else {"num_tokens": tokens}
    return {"step": end, "loss": 0.1, "step_time": 12.0, "completions/mean_length": mean, **told}


@pytest.mark.parametrize(
    "tokens, resolved",
    # One generation of 8 completions of 100 tokens in two steps, with prompts of 20; and one in each step.
    [([None] * 4, 800), ([960.0 * n for n in (1, 2, 3, 4)], None), ([1920.0 * n for n in (1, 2, 3, 4)], 800)],
)
def test_tokens_of_steps_of_which_not_all_generate_are_not_known(tmp_path, tokens, resolved):
    """TRL with num_iterations 2 and logging_steps 2 logs the mean length of every second step."""
    history = [trl_window(2 * n, 100.0, told) for n, told in enumerate(tokens, 1)]
    state = write(tmp_path, json.dumps({"log_history": history}), "trainer_state.json")
    spec = spec_of("vllm", [state], trainer="trl", version="1.16.0", batch_size=8)
    frame, metadata, _ = imported(tmp_path / "res", spec)
    found = frame.loc[frame["name"] == "response_tokens", "value"].tolist()
    assert found == ([] if resolved is None else [resolved] * 4)
    assert ("tokens-unknown" in codes(metadata)) == (resolved is None)
    if resolved is None:
        told = said(metadata, "tokens-unknown")
        assert "no response tokens in 4 steps" in told and "960 tokens" in told and "give 1600" in told


@pytest.mark.parametrize(
    "config, word",
    [
        ({"num_iterations": 2, "steps_per_generation": 4, "gradient_accumulation_steps": 4}, "num_iterations is 2"),
        ({"num_iterations": 1, "steps_per_generation": 8, "gradient_accumulation_steps": 4}, "is 8, above"),
        ({"num_iterations": 1, "steps_per_generation": 2, "gradient_accumulation_steps": 4}, ""),
        ({"num_iterations": "2"}, ""),
    ],
)
def test_a_configuration_tells_whether_each_step_generates(config, word):
    record = StepRecord(2, {"step": 1.0}, {"train/completions/mean_length": 100.0}, {}, False, Path("a.json"), 1)
    chosen = [ChosenStep(1, record, False, False)]
    verdicts = add_known_tokens(chosen, 8, "r", config)
    (found,) = chosen
    assert ("response_tokens" in found.record.scalars) == (not word)
    assert [v.code for v in verdicts] == ["tokens-unknown"] * bool(word) and all(word in v.text for v in verdicts)


def test_the_loop_is_told_by_its_timers(tmp_path):
    slowest = {**PLAIN, "agent_loop/slowest/generate_sequences": 7.5, "agent_loop/num_preempted/max": 2.0}
    spec = spec_of("vllm", [write(tmp_path, verl_lines([slowest]))], version="0.9.1")
    frame, metadata, _ = imported(tmp_path / "res", spec)
    assert metadata["timers"] == "verl 0.9.1 legacy" and codes(metadata) == ["mode-by-timers"]
    assert "step/gen/slowest_generate_sequences" in set(frame["name"])
    preempted = frame[frame["name"] == "agent_loop/num_preempted/max"].iloc[0]
    assert preempted["kind"] == "scalar" and preempted["unit"] == "1"


STALE = "training/off_policy/trajectory_staleness_worst/max"


@pytest.mark.parametrize(
    ("version", "logged", "mode"),
    [
        ("0.7.0", {"generate_async": 7.0, "sync_rollout_weights": 0.5}, "one_step_off"),
        ("0.7.1", {"generate_async": 7.0}, "one_step_off"),
        ("0.5.0", {"wait_prev_gen": 7.0, "sync_rollout_weights": 0.5}, "one_step_off"),
        ("0.9.1", {"sync_rollout_weights": 0.5}, "one_step_off"),
        ("0.8.0", {"timing_s/param_sync": 1.0}, "fully_async"),
        ("0.9.1", {"switch_wait": 1.0}, "separate_async"),
    ],
)
def test_a_loop_that_overlaps_is_told_by_its_own_timers(tmp_path, version, logged, mode):
    spec = spec_of("vllm", [write(tmp_path, verl_lines([PLAIN, {**PLAIN, **logged}]))], version=version)
    frame, metadata, _ = imported(tmp_path / "res", spec)
    assert metadata["timers"].endswith(mode) and frame[frame["kind"] == "phase"]["name"].unique().tolist() == ["step"]
    assert codes(metadata) == ["mode-by-timers", "overlapping-phases"]
    assert f"confirm it with import.mode: {mode}" in said(metadata, "mode-by-timers")


def test_the_timers_of_a_loop_count_more_than_the_configuration_and_less_than_import_mode(tmp_path):
    held = {"actor_rollout_ref": {"rollout": {"name": "vllm"}}, "trainer": {"use_v1": True}}
    log = write(tmp_path, f"{held}\n" + verl_lines([{**PLAIN, "switch_to_trainer": 1.0}]))
    _, metadata, _ = imported(tmp_path / "res", spec_of("vllm", [log], version="0.9.1"))
    assert metadata["timers"] == "verl 0.9.1 separate_async" and "mode-by-timers" in codes(metadata)
    for mode in ("sync", "separate_async"):
        _, metadata, _ = imported(tmp_path / mode, spec_of("vllm", [log], version="0.9.1", mode=mode))
        assert metadata["timers"] == f"verl 0.9.1{'' if mode == 'sync' else ' separate_async'}"
        assert "mode-by-timers" not in codes(metadata)


@pytest.mark.parametrize(
    ("ages", "timers", "found"),
    [
        ((0.0, 0.0, 0.0), "verl 0.9.1", []),
        # Every loop begins with responses of the newest weights.
        ((0.0,), "verl 0.9.1", ["mode-unknown"]),
        ((0.0, 0.0), "verl 0.9.1", ["mode-unknown"]),
        ((0.0, 1.0), "verl 0.9.1 separate_async", ["mode-by-timers", "overlapping-phases"]),
        ((None, None), "verl 0.9.1", ["mode-unknown"]),
    ],
)
def test_a_loop_without_timers_of_its_own_is_told_by_how_old_its_responses_are_or_asked_for(
    tmp_path, ages, timers, found
):
    """separate_async times what the synchronous loop does, and its `gen` is waiting."""
    lines = [line + "\n" for line in verl_lines([PLAIN] * len(ages)).splitlines()]
    text = "".join(x if age is None else x[:-1] + f" - {STALE}:{age!r}\n" for x, age in zip(lines, ages, strict=True))
    spec = spec_of("vllm", [write(tmp_path, text)], version="0.9.1")
    _, metadata, _ = imported(tmp_path / "res", spec)
    # verl waits for its responses in polls of 2 s, which is said of each.
    told = [code for code in codes(metadata) if code != "wait-polled"]
    assert metadata["timers"] == timers and told == found
    assert not found or "import.mode" in metadata["verdicts"][0]["text"]
    _, metadata, _ = imported(
        tmp_path / "sure", spec_of("vllm", spec["import"]["sources"], version="0.9.1", mode="sync")
    )
    assert metadata["timers"] == "verl 0.9.1" and codes(metadata) == ["wait-polled"]


def test_what_a_log_prints_of_keys_and_tokens_goes_nowhere(tmp_path):
    held = {"actor_rollout_ref": {"rollout": {"name": "vllm"}}, "trainer": {"wandb_api_key": "sk-0123456789"}}
    held["trainer"]["note"] = "pushed with hf_" + "a1" * 17
    log = write(tmp_path, f"{held}\n{verl_lines([PLAIN])}")
    _, _, end = imported(tmp_path / "res", spec_of("vllm", [log]))
    assert end["resolved"]["trainer"] == {"wandb_api_key": "[hidden]", "note": "pushed with [hidden]"}
    files = [f for f in (tmp_path / "res").rglob("*") if f.is_file()]
    assert len(files) == 3 and not any(b"sk-0123456789" in f.read_bytes() for f in files)
