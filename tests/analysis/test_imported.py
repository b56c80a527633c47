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


def test_what_a_log_prints_of_keys_and_tokens_goes_nowhere(tmp_path):
    held = {"actor_rollout_ref": {"rollout": {"name": "vllm"}}, "trainer": {"wandb_api_key": "sk-0123456789"}}
    held["trainer"]["note"] = "pushed with hf_" + "a1" * 17
    log = write(tmp_path, f"{held}\n{verl_lines([PLAIN])}")
    _, _, end = imported(tmp_path / "res", spec_of("vllm", [log]))
    assert end["resolved"]["trainer"] == {"wandb_api_key": "[hidden]", "note": "pushed with [hidden]"}
    files = [f for f in (tmp_path / "res").rglob("*") if f.is_file()]
    assert len(files) == 3 and not any(b"sk-0123456789" in f.read_bytes() for f in files)
