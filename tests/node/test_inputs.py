"""Data and models prepared in a stack: each source and each mistake; inputs.yaml has the requests."""

import json
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from .. import patience
from ..attempts import DATA, MODEL, ROOT, TRANSFORMERS, job_environment, run_warm

CASES = yaml.safe_load(Path(__file__).with_name("inputs.yaml").read_text(encoding="utf-8"))
FILES, REQUESTS = CASES["files"], CASES["requests"]
# One process prepares many requests, since importing the libraries takes longer than the work.
MANY = """
import contextlib, io, json, sys
from pathlib import Path
from node.exit_codes import run
from node.inputs import prepare_inputs
results = {}
for name, request in json.load(sys.stdin).items():
    made, stderr = {}, io.StringIO()
    with contextlib.redirect_stderr(stderr):
        code = run(lambda: made.update(prepare_inputs(request, Path(sys.argv[1], name))))
    results[name] = {"code": code, "stderr": stderr.getvalue(), "made": made}
print(json.dumps(results))
"""
COLUMNS = {"prompt_column": "q", "answer_column": "a", "answer_after": "####", "rows": None}


def write(file, content):
    file.parent.mkdir(exist_ok=True)
    if isinstance(content, str):
        file.write_text(content)
    elif file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([row | {"raw": b"1"} for row in content]), file)
    else:
        file.write_text(json.dumps(content) if file.suffix == ".json" else "\n".join(map(json.dumps, content)))


def request(folder, data=None, model=None, max_response_length=16, **_):
    """What a case asks for; sources that are its files are in the folder."""
    data, model = dict(data or {}), {**MODEL, **(model or {})}
    asked = {**DATA, **(COLUMNS if "source" in data else {}), **data}
    for given, key in ((asked, "source"), (asked, "test_source"), (model, "source")):
        if (folder / str(given.get(key))).exists():
            given[key] = str(folder / given[key])
    return {"data": asked, "model": model, "max_prompt_length": 48, "max_response_length": max_response_length}


@pytest.fixture(scope="module")
def results(stack_python, tmp_path_factory):
    """What came of each request, by name; `folder` is where the outputs lie."""
    folder, given = (tmp_path_factory.mktemp(name) for name in ("many", "given"))
    for name, content in FILES.items():
        write(given / name, content)
    done = patience.run(
        [str(stack_python(TRANSFORMERS)), "-c", MANY, str(folder)],
        300,
        input=json.dumps({name: request(given, **case) for name, case in REQUESTS.items()}),
        cwd=ROOT,
        env=job_environment(HF_HOME=str(folder / "hub"), HF_DATASETS_DISABLE_PROGRESS_BARS="1"),
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "folder": folder}


def rows_of(results, name, file="data"):
    assert results[name]["code"] == 0, results[name]["stderr"]
    return pq.read_table(results["folder"] / name / results[name]["made"][file]["path"]).to_pylist()


@pytest.mark.parametrize("name", [name for name, case in REQUESTS.items() if "says" not in case])
def test_each_source_has_its_rows(results, name):
    case, made, rows = REQUESTS[name], results[name]["made"], rows_of(results, name)
    assert len(rows) == made["data"]["rows"] == case["rows"]
    assert made["data"]["dropped_too_long"] == case.get("dropped", 0)
    truths = [row["reward_model"]["ground_truth"] for row in rows]
    assert truths == case.get("truths", truths)


@pytest.mark.parametrize("name", [name for name, case in REQUESTS.items() if "says" in case])
def test_mistakes_are_one_line(results, name):
    assert results[name]["code"] == 2, results[name]["stderr"]
    last = results[name]["stderr"].splitlines()[-1]
    assert last.startswith("error: ")
    assert "Traceback" not in results[name]["stderr"]
    for words in REQUESTS[name]["says"]:
        assert words in last
    left = results["folder"] / name
    assert not left.exists() or list(left.iterdir()) == []


def test_validation_rows_are_prepared_like_training_rows(results):
    assert len(rows_of(results, "test", "test")) == 5  # the one that is too long is dropped of both
    assert results["builtin"]["made"]["test"] is None


def test_builtins_are_reproducible(results):
    first, again, other = (results[name]["made"] for name in ("builtin", "again", "other-seed"))
    assert first["data"]["sha256"] == again["data"]["sha256"] != other["data"]["sha256"]
    assert first["model"]["sha256"] == again["model"]["sha256"] != other["model"]["sha256"]
    assert 1_000_000 < first["model"]["parameters"] < 3_000_000
    assert 25_000_000 < results["small"]["made"]["model"]["parameters"] < 40_000_000
    shape = results["folder"] / "shape" / "model"
    config = json.loads((shape / "config.json").read_text())
    assert (config["architectures"], config["num_hidden_layers"]) == (["Phi3ForCausalLM"], 40)
    assert results["shape"]["made"]["model"]["parameters"] is None and not list(shape.glob("*.safetensors"))
    assert 5 < first["prompt_tokens"]["min"] <= first["prompt_tokens"]["mean"] <= first["prompt_tokens"]["max"] <= 48
    folder = results["folder"] / "builtin"
    assert json.loads((folder / "inputs.json").read_text()) == first
    assert sorted(path.name for path in folder.iterdir()) == ["data.parquet", "inputs.json", "model"]


def test_columns_are_verls(results):
    rows = rows_of(results, "system")
    assert list(rows[0]) == ["data_source", "prompt", "reward_model", "extra_info"]
    assert [message["role"] for message in rows[0]["prompt"]] == ["system", "user"]
    assert rows[0]["prompt"][0]["content"] == "Be brief."
    assert rows[3]["extra_info"] == {"index": 3, "split": "train"}
    assert rows[0]["reward_model"]["style"] == "rule"
    for row in rows:
        formula = row["prompt"][1]["content"].removeprefix("What is ").removeprefix("Compute ").split("?")[0]
        value = eval(formula.replace("=", "").rstrip("."))  # the tool's own sums, no foreign text
        assert row["reward_model"]["ground_truth"] == str(value)
    assert [row["extra_info"]["index"] for row in rows_of(results, "jsonl-drop")] == [0, 1, 3, 4, 5]


def test_verls_own_data_is_read_as_it_is(results):
    (row,) = rows_of(results, "verl")
    assert [(one["role"], one["content"]) for one in row["prompt"]] == [("system", "Think."), ("user", "1+1?")]
    assert row["data_source"] == "of/verl"


def test_extra_columns_are_unchanged(results):
    rows = [row["extra_info"] for row in rows_of(results, "further")]
    assert [(row["index"], row["split"]) for row in rows] == [(0, "train"), (1, "train")]
    given = [{name: row[name] for name in ("tags", "of", "day")} for row in FILES["further.jsonl"]]
    assert [json.loads(row["columns"]) for row in rows] == given


KILLED = """
import os, signal
from node import inputs
lengths = inputs.prompt_lengths
def killed(*given):  # the model is made, and nothing is where it shall be
    lengths(*given)
    os.kill(os.getpid(), signal.SIGKILL)
inputs.prompt_lengths = killed
inputs.main()
"""


@pytest.mark.full("libraries of a stack")
def test_an_interrupted_run_leaves_nothing_that_looks_finished(stack_python, tmp_path):
    (tmp_path / "request.json").write_text(json.dumps(request(tmp_path)))
    out = tmp_path / "out"
    done = run_warm(stack_python(TRANSFORMERS), "-c", KILLED, "--request", tmp_path / "request.json", "--out", out)
    assert done.returncode == -signal.SIGKILL and list(out.glob(".making-*/model/*")), done.stderr
    assert not (out / "inputs.json").exists()
    assert not (out / "model").exists()
