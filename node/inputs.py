"""Prepares the data and models of an experiment once, before any arm starts.

`python -m node.inputs --request request.json --out DIR` writes data.parquet, model/ and, last, inputs.json.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import file_sha256, read_json_object, tree_sha256, write_json
from node.dataset import read_examples
from node.exit_codes import run
from node.hub import source_kind
from node.policy import hub_snapshot, parameter_count, prepare_model, prompt_lengths
from node.reward_model import load_tokenizer, model_key, reward_model_problem

_PACKAGES = ("datasets", "pyarrow", "tokenizers", "transformers", "torch")


def prepare_inputs(request: dict[str, Any], out: Path) -> dict[str, Any]:
    """Write an experiment's data and model into `out`; returns the content of inputs.json.

    Everything is written to a temporary folder inside `out` and renamed, inputs.json last, so that an interrupted run
    never looks finished.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / "inputs.json").unlink(missing_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".making-", dir=out))
    try:
        content = _prepare(request, work)
        for file in work.glob("*.parquet"):
            file.replace(out / file.name)
        if content["model"]["path"] == "model":
            shutil.rmtree(out / "model", ignore_errors=True)
            (work / "model").replace(out / "model")
        write_json(out / "inputs.json", content)
        _progress(f"done: {content['data']['rows']} prompts, {content['model']['parameters']} parameters")
        return content
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _prepare(request: dict[str, Any], work: Path) -> dict[str, Any]:
    data, model = request["data"], request["model"]
    _progress(f"data: {data['source']}")
    examples = read_examples(data)
    _progress(f"model: {model['source']}")
    model_folder = prepare_model(model, [example["prompt"] for example in examples], work / "model")
    _progress(f"prompts: {len(examples)}")
    kept, lengths = _fitting(examples, model_folder, request)
    _write_parquet(kept, work / "data.parquet")
    test = _test_examples(model_folder, request)
    if test is not None:
        _write_parquet(test, work / "test.parquet")
    models = {model_key(reward): _reward_model(reward) for reward in request.get("reward_models") or ()}
    return {
        **({"reward_models": models} if models else {}),
        "data": {
            **_file_entry(work / "data.parquet", kept, data["source"]),
            "dropped_too_long": len(examples) - len(kept),
            "revision": data.get("revision"),
        },
        "test": None if test is None else _file_entry(work / "test.parquet", test, data["test_source"]),
        "model": {
            "path": "model" if model_folder == work / "model" else str(model_folder),
            "sha256": tree_sha256(model_folder),
            "source": model["source"],
            "revision": model.get("revision"),
            "parameters": parameter_count(model_folder),
        },
        "prompt_tokens": {"min": min(lengths), "mean": sum(lengths) / len(lengths), "max": max(lengths)},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
    }


def _reward_model(reward: dict[str, Any]) -> dict[str, Any]:
    """The entry of a reward model in inputs.json; `UserError` if it is missing or not a reward model."""
    source, revision = str(reward["model"]), reward.get("revision")
    _progress(f"reward model: {source}")
    try:
        is_local = source_kind(source) == "local"
        folder = Path(source).expanduser().resolve() if is_local else hub_snapshot(source, str(revision))
    except UserError as error:
        raise UserError(str(error).replace("workload.model.source", "workload.rewards: model")) from None
    if problem := reward_model_problem(folder):
        raise UserError(f"workload.rewards: {problem}; give a sequence classifier with one label")
    load_tokenizer(folder)
    entry = {"path": str(folder), "sha256": tree_sha256(folder), "parameters": parameter_count(folder)}
    return {**entry, "source": source, "revision": revision}


def _file_entry(file: Path, examples: list[dict[str, Any]], source: str) -> dict[str, Any]:
    return {"path": file.name, "sha256": file_sha256(file), "rows": len(examples), "source": source}


def _test_examples(model_folder: Path, request: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The validation examples, if they are not the training rows."""
    data = request["data"]
    if not data.get("test_source"):
        return None
    _progress(f"test data: {data['test_source']}")
    try:
        examples = read_examples(data | {"source": data["test_source"], "rows": None, "split": "test"})
        return _fitting(examples, model_folder, request)[0]
    except UserError as error:
        raise UserError(str(error).replace("workload.data.source", "workload.data.test_source")) from None


def _fitting(
    examples: list[dict[str, Any]], model_folder: Path, request: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[int]]:
    """The examples whose prompts are short enough, and their lengths; `UserError` if `too_long` refuses the others."""
    limit, conversations = int(request["max_prompt_length"]), [example["prompt"] for example in examples]
    lengths = prompt_lengths(model_folder, conversations, limit, int(request["max_response_length"]))
    kept = [example for example, length in zip(examples, lengths, strict=True) if length <= limit]
    if len(kept) < len(examples):
        what = (
            f"{len(examples) - len(kept)} of {len(examples)} prompts are longer than workload.max_prompt_length = "
            f"{limit} tokens (the longest has {max(lengths)})"
        )
        if request["data"].get("too_long", "error") == "error":
            raise UserError(f"{what}; raise it, or set workload.data.too_long to drop")
        if not kept:
            raise UserError(f"{what}; dropping them would leave none; raise it")
        _progress(f"dropped: {what}")
    return kept, [length for length in lengths if length <= limit]


def _write_parquet(examples: list[dict[str, Any]], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # The columns that verl reads, with a fixed schema, so that the bytes depend only on the rows.
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    extra = [("columns", pa.string())] if "columns" in examples[0]["extra_info"] else []
    schema = pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(message)),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
            ("extra_info", pa.struct([("index", pa.int64()), ("split", pa.string()), *extra])),
        ]
    )
    pq.write_table(pa.Table.from_pylist(examples, schema=schema), path)


def _progress(message: str) -> None:
    print(f"inputs: {message}", file=sys.stderr, flush=True)


def main() -> None:
    """Prepare the inputs of a request."""
    parser = argparse.ArgumentParser(prog="python -m node.inputs", description=__doc__)
    parser.add_argument("--request", type=Path, required=True, help="request.json")
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    arguments = parser.parse_args()
    # Threads could change the tokenizer's merge order and slow down other jobs.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    prepare_inputs(read_json_object(arguments.request, "the rule `inputs`"), arguments.out)


if __name__ == "__main__":
    sys.exit(run(main))
