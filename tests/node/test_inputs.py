"""Data and models prepared in a stack: each source and each mistake."""

import json
import signal

import pytest

from .. import patience
from ..attempts import DATA, MODEL, ROOT, TRANSFORMERS, job_environment, run_warm

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

# Answers that would be trained on as Python writes them.
STRANGE = {"lists": [["a"], ["b"]], "blank": ["a", "b", "   "]}


def request(data=None, model=None, **other):
    """A request that can be met, with changes."""
    lengths = {"max_prompt_length": 48, "max_response_length": 16}
    return {"data": {**DATA, **(data or {})}, "model": {**MODEL, **(model or {})}, **lengths, **other}


@pytest.fixture(scope="module")
def results(stack_python, tmp_path_factory):
    """What came of each request, by name; `folder` is where the outputs lie."""
    folder = tmp_path_factory.mktemp("many")
    rows = [{"q": f"What is {n}?", "a": f"It is\n#### {n},000"} for n in range(10, 16)]
    rows[2]["q"] = "word " * 60
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "rows.json").write_text(json.dumps(rows))
    (folder / "empty.jsonl").write_text("")
    (folder / "broken.jsonl").write_text('{"q": 1')
    (folder / "holes.jsonl").write_text('{"q": "x", "a": null}\n{"q": "y", "a": "1"}')
    (folder / "text-and-numbers.jsonl").write_text('{"q": "x", "a": "1/2"}\n{"q": "y", "a": 3}\n')
    (folder / "late.jsonl").write_text('{"q": "x", "a": "1"}\n\n{"q": "y", "a": 2,}\n')
    for name, answers in STRANGE.items():
        lines = [json.dumps({"q": "x", "a": answer}) for answer in answers]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    further = [{"tags": [None, "x"], "of": {"n": at, "é": 0.5}, "day": "2025-01-31"} for at in range(2)]
    lines = [{"q": "x", "a": "1", "unused": 1, **one} for one in further]
    (folder / "further.jsonl").write_text("\n".join(map(json.dumps, lines)))
    messages = [{"role": "system", "content": "Think."}, {"role": "user", "content": "1+1?"}]
    verls = {"data_source": "of/verl", "reward_model": {"style": "rule", "ground_truth": "2"}}
    (folder / "verl.jsonl").write_text(json.dumps({"prompt": messages, **verls}))
    (folder / "a-folder").mkdir()
    (folder / "a-folder" / "config.json").write_text("{}")
    columns = {"prompt_column": "q", "answer_column": "a", "answer_after": "####", "rows": None}
    jsonl = {**columns, "source": str(folder / "rows.jsonl")}
    of_verl = {"source": str(folder / "verl.jsonl"), "prompt_column": "prompt", "rows": None}
    of_verl["answer_column"] = "reward_model.ground_truth"
    requests = {
        "verl": request(of_verl),
        "verl-elsewhere": request({**of_verl, "answer_column": "reward_model.truth"}),
        "builtin": request(),
        "again": request(),
        "other-seed": request({"seed": 1}, {"seed": 1}),
        "small": request(None, {"source": "builtin:small-qwen2"}),
        "shape": request(None, {"source": "builtin:phi4-shape"}),
        "system": request({"system_prompt": "Be brief."}),
        "jsonl-drop": request({**jsonl, "too_long": "drop"}),
        "json-first-two": request({**columns, "source": str(folder / "rows.json"), "rows": 2}),
        "test": request({**jsonl, "too_long": "drop", "test_source": str(folder / "rows.json")}),
        "no-test-file": request({"test_source": "./no/such.jsonl"}),
        "parquet": request({"source": str(folder / "rows.parquet"), **columns, "rows": 2}),
        "further": request(
            {**columns, "source": str(folder / "further.jsonl"), "answer_after": None, "columns": ["tags", "of", "day"]}
        ),
        "further-missing": request({**jsonl, "columns": ["tags"]}),
        "jsonl-too-long": request(jsonl),
        "too-many-rows": request({**jsonl, "rows": 7}),
        "no-column": request({**jsonl, "prompt_column": "question"}),
        "empty": request({**jsonl, "source": str(folder / "empty.jsonl")}),
        "broken": request({**jsonl, "source": str(folder / "broken.jsonl")}),
        "holes": request({**jsonl, "source": str(folder / "holes.jsonl"), "answer_after": None}),
        "text-and-numbers": request({**jsonl, "source": str(folder / "text-and-numbers.jsonl"), "answer_after": None}),
        "late": request({**jsonl, "source": str(folder / "late.jsonl"), "answer_after": None}),
        "blank-unused": request({**jsonl, "source": str(folder / "blank.jsonl"), "answer_after": None, "rows": 2}),
        **{name: request({**jsonl, "source": str(folder / f"{name}.jsonl"), "answer_after": None}) for name in STRANGE},
        "no-file": request({**jsonl, "source": "./no/such.jsonl"}),
        "hub-offline": request({"source": "org/data", "revision": "0" * 40}),
        "no-model": request(None, {"source": str(folder / "a-folder")}),
        "model-offline": request(None, {"source": "org/model", "revision": "0" * 40}),
        "context": request(None, None, max_response_length=2048),
    }
    code = (
        "import json, sys, pyarrow as pa, pyarrow.parquet as pq\n"
        f"rows = [row | {{'raw': b'1'}} for row in json.load(open({str(folder / 'rows.json')!r}))]\n"
        f"pq.write_table(pa.Table.from_pylist(rows), {str(folder / 'rows.parquet')!r})\n" + MANY
    )
    done = patience.run(
        [str(stack_python(TRANSFORMERS)), "-c", code, str(folder)],
        300,
        input=json.dumps(requests),
        cwd=ROOT,
        env=job_environment(HF_HOME=str(folder / "hub"), HF_DATASETS_DISABLE_PROGRESS_BARS="1"),
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "folder": folder}


def test_validation_rows_are_prepared_like_training_rows(results):
    made = results["test"]["made"]
    assert (made["data"]["rows"], made["test"]["rows"]) == (5, 5)  # the one that is too long is dropped of both
    assert (results["folder"] / "test" / made["test"]["path"]).is_file()
    assert results["builtin"]["made"]["test"] is None
    assert "workload.data.test_source './no/such.jsonl' is not a file" in results["no-test-file"]["stderr"]


def test_builtins_are_reproducible(results):
    first, again, other = results["builtin"]["made"], results["again"]["made"], results["other-seed"]["made"]
    assert first["data"]["sha256"] == again["data"]["sha256"] != other["data"]["sha256"]
    assert first["model"]["sha256"] == again["model"]["sha256"] != other["model"]["sha256"]
    assert first["data"]["rows"] == 32
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


def read_parquet(path):
    parquet = pytest.importorskip("pyarrow.parquet")
    return list(parquet.read_table(path).to_pylist())


def test_columns_are_verls(results):
    rows = read_parquet(results["folder"] / "system" / "data.parquet")
    assert list(rows[0]) == ["data_source", "prompt", "reward_model", "extra_info"]
    assert [message["role"] for message in rows[0]["prompt"]] == ["system", "user"]
    assert rows[0]["prompt"][0]["content"] == "Be brief."
    assert rows[3]["extra_info"] == {"index": 3, "split": "train"}
    assert rows[0]["reward_model"]["style"] == "rule"
    assert rows[0]["reward_model"]["ground_truth"].lstrip("-").isdigit()


def test_verls_own_data_is_read_as_it_is(results):
    assert results["verl"]["code"] == 0, results["verl"]["stderr"]
    (row,) = read_parquet(results["folder"] / "verl" / "data.parquet")
    assert [(one["role"], one["content"]) for one in row["prompt"]] == [("system", "Think."), ("user", "1+1?")]
    assert (row["data_source"], row["reward_model"]["ground_truth"]) == ("of/verl", "2")


def test_local_files(results):
    dropped = results["jsonl-drop"]
    assert dropped["code"] == 0, dropped["stderr"]
    assert (dropped["made"]["data"]["rows"], dropped["made"]["data"]["dropped_too_long"]) == (5, 1)
    rows = read_parquet(results["folder"] / "jsonl-drop" / "data.parquet")
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["10000", "11000", "13000", "14000", "15000"]
    assert [row["extra_info"]["index"] for row in rows] == [0, 1, 3, 4, 5]
    for name in ("json-first-two", "parquet", "blank-unused"):
        assert results[name]["code"] == 0, results[name]["stderr"]
        assert results[name]["made"]["data"]["rows"] == 2


def test_extra_columns_are_unchanged(results):
    assert results["further"]["code"] == 0, results["further"]["stderr"]
    rows = [row["extra_info"] for row in read_parquet(results["folder"] / "further" / "data.parquet")]
    assert [(row["index"], row["split"]) for row in rows] == [(0, "train"), (1, "train")]
    given = [json.loads(row["columns"]) for row in rows]
    assert given == [{"tags": [None, "x"], "of": {"n": at, "é": 0.5}, "day": "2025-01-31"} for at in range(2)]


def test_a_column_of_text_and_numbers_is_unchanged(results):
    rows = read_parquet(results["folder"] / "text-and-numbers" / "data.parquet")
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["1/2", "3"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("jsonl-too-long", ["1 of 6 prompts are longer than workload.max_prompt_length = 48", "the longest has "]),
        ("too-many-rows", ["rows is 7, but", "has 6"]),
        ("no-column", ["prompt_column is 'question'", "columns q, a"]),
        ("further-missing", ["workload.data.columns is 'tags'", "columns q, a"]),
        ("empty", ["has no rows"]),
        ("broken", ["cannot be read as jsonl"]),
        ("late", ["line 3 is not JSON", "correct or remove"]),
        ("holes", ["1 of 2 rows", "in row 1 column 'a' (workload.data.answer_column)", "(got null)"]),
        ("lists", ["2 of 2 rows", "row 1 column 'a'", "must be text or a number", "(got ['a'])"]),
        ("blank", ["1 of 3 rows", "row 3 column 'a'", "not blank (got ' ')"]),
        ("verl-elsewhere", ["column 'reward_model' has no 'truth'", "correct 'reward_model.truth'"]),
        ("no-file", ["'./no/such.jsonl' is not a file"]),
        (
            "hub-offline",
            ["'org/data' at revision", "cannot be reached", "HF_HOME", "--repo-type dataset", "local path"],
        ),
        ("no-model", ["lacks a tokenizer", "and weights"]),
        ("model-offline", ["'org/model' at revision", "cannot be reached", "HF_HOME"]),
        ("context", ["48 + 2048 = 2096 tokens", "is 2048"]),
    ],
)
def test_mistakes_are_one_line(results, name, words):
    assert results[name]["code"] == 2, results[name]["stderr"]
    last = results[name]["stderr"].splitlines()[-1]
    assert last.startswith("error: ")
    assert "Traceback" not in results[name]["stderr"]
    for word in words:
        assert word in last
    left = results["folder"] / name
    assert not left.exists() or list(left.iterdir()) == []


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
    (tmp_path / "request.json").write_text(json.dumps(request()))
    out = tmp_path / "out"
    done = run_warm(stack_python(TRANSFORMERS), "-c", KILLED, "--request", tmp_path / "request.json", "--out", out)
    assert done.returncode == -signal.SIGKILL and list(out.glob(".making-*/model/*")), done.stderr
    assert not (out / "inputs.json").exists()
    assert not (out / "model").exists()
