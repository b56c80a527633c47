"""Runs that were trained elsewhere, from their sources to the tables."""

import json

import pandas as pd
import pyarrow.parquet as pq
from imports_of import spec_of

from analysis.counted import wide_steps
from analysis.imports.__main__ import main
from analysis.imports.formats import read_source
from analysis.runs import read_run
from analysis.steps import read_steps


def imported(results, spec):
    """The run's folder, its table and what stands beside the table."""
    folder = results / "runs" / spec["run_id"]
    assert main([json.dumps(spec), "--out", str(folder / "steps.parquet")]) == 0
    table, metadata = read_steps(folder / "steps.parquet")
    return table.to_pandas(), metadata, json.loads((folder / "imported.json").read_text())


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


def test_a_long_run_is_written_in_groups_of_rows(tmp_path, monkeypatch):
    spec = spec_of([str(write(tmp_path, verl_lines([PLAIN] * 9 + [PLAIN | {"adv": 0.25}])))], "verl", version="0.4.1")
    whole, about, _ = imported(tmp_path / "one", spec)
    monkeypatch.setattr("analysis.steps.ROWS_AT_A_TIME", 9)
    parts, metadata, _ = imported(tmp_path / "two", spec)
    assert parts.equals(whole) and metadata == about
    file = tmp_path / "two" / "runs" / "one-s0" / "steps.parquet"
    assert [pq.ParquetFile(file).metadata.row_group(n).num_rows for n in range(4)] == [12, 12, 12, 5]
    one, two = (wide_steps([read_run(tmp_path / name, spec["run_id"], None)[0]], 0)[0] for name in ("one", "two"))
    pd.testing.assert_frame_equal(one, two)
    assert one["timing_s/step/adv"].dropna().tolist() == [0.25]


def test_a_source_that_grows_while_it_is_read_is_told(tmp_path, capsys, monkeypatch):
    log = write(tmp_path, verl_lines([PLAIN]))
    spec = spec_of([str(log)], "verl", version="0.4.1")

    def growing(source, *rest):
        read = read_source(source, *rest)
        log.write_text(verl_lines([PLAIN, PLAIN]))
        return read

    monkeypatch.setattr("analysis.imports.import_run.read_source", growing)
    out = tmp_path / "failed" / "steps.parquet"
    assert main([json.dumps(spec), "--out", str(out)]) == 1 and not out.exists()
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "run.log changed while it was read" in error


def test_what_a_log_prints_of_keys_and_tokens_goes_nowhere(tmp_path):
    held = {"actor_rollout_ref": {"rollout": {"name": "vllm"}}, "trainer": {"wandb_api_key": "sk-0123456789"}}
    held["trainer"]["note"] = "pushed with hf_" + "a1" * 17
    log = write(tmp_path, f"{held}\n{verl_lines([PLAIN])}")
    _, _, end = imported(tmp_path / "res", spec_of([str(log)], "verl", version="0.4.1"))
    assert end["resolved"]["trainer"] == {"wandb_api_key": "[hidden]", "note": "pushed with [hidden]"}
    files = [f for f in (tmp_path / "res").rglob("*") if f.is_file()]
    assert len(files) == 3 and not any(b"sk-0123456789" in f.read_bytes() for f in files)
