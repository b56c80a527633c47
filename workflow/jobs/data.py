"""Which prompts and ground truths does a workload train on?"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from workflow.jobs.arithmetic import DEFAULT_ROWS, arithmetic_rows
from workflow.jobs.errors import UserError, causes, nearest, no_space_left, one_line
from workflow.jobs.hub import check_revision, hub_error, looks_local

BUILTINS = ("builtin:arithmetic",)
_LOADERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}


def read_examples(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The examples of a workload's data section, in verl's columns.

    Each is `{data_source, prompt: [{role, content}], reward_model: {style, ground_truth}, extra_info: {index,
    split}}`; `index` is the row's place in the source. Raises `UserError` for an unknown source, a missing file,
    column or answer, no rows, or a hub that cannot be reached.
    """
    rows = _source_rows(data)
    source, wanted = str(data["source"]), data.get("rows")
    if not rows:
        raise UserError(f"workload.data.source {source!r} has no rows; give a source with at least one")
    if wanted is not None:
        if len(rows) < wanted:
            raise UserError(
                f"workload.data.rows is {wanted}, but {source!r} has {len(rows)}; lower it or set it to null"
            )
        rows = rows[:wanted]
    truths = ground_truths([row["answer"] for row in rows], data.get("answer_after"))
    system = data.get("system_prompt")
    opening = [{"role": "system", "content": str(system)}] if system else []
    return [
        {
            "data_source": source,
            "prompt": [*opening, {"role": "user", "content": str(row["question"])}],
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": {"index": index, "split": str(data.get("split", "train"))},
        }
        for index, (row, truth) in enumerate(zip(rows, truths, strict=True))
    ]


def ground_truths(answers: Sequence[Any], answer_after: str | None) -> list[str]:
    """The ground truth in each answer: the whole of it, or what follows the last `answer_after`, without the commas
    that part thousands (GSM8K writes `#### 1,234`)."""
    texts = [str(answer) for answer in answers]
    if answer_after is None:
        return [text.strip() for text in texts]
    without = sum(answer_after not in text for text in texts)
    if without:
        raise UserError(
            f"workload.data.answer_after is {answer_after!r}, but {without} of {len(texts)} answers do not contain it; "
            f"correct it, or set it to null to take the whole answer"
        )
    return [_without_thousands_commas(text.rsplit(answer_after, 1)[1].strip()) for text in texts]


def _without_thousands_commas(text: str) -> str:
    parts = text.split(",")
    grouped = len(parts) > 1 and all(len(part) >= 3 and part[:3].isdigit() for part in parts[1:])
    return "".join(parts) if grouped and parts[0][-1:].isdigit() else text


def _source_rows(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The source's rows as `question` and `answer`."""
    source = str(data["source"])
    if source in BUILTINS:
        return list(arithmetic_rows(data.get("rows") or DEFAULT_ROWS, int(data.get("seed", 0))))
    if source.startswith("builtin:"):
        raise UserError(
            f"workload.data.source {source!r} is not built in; built in: {', '.join(BUILTINS)}"
            f"{nearest(source, BUILTINS)}"
        )
    if looks_local(source):
        return _columns(_local_table(source), data)
    return _columns(_hub_table(source, data), data)


def _local_table(source: str) -> Any:
    from datasets import load_dataset

    path = Path(source).expanduser()
    if not path.is_file():
        raise UserError(f"workload.data.source {source!r} is not a file (seen from {Path.cwd()}); correct the path")
    if path.suffix not in _LOADERS:
        raise UserError(f"workload.data.source {source!r} must end in {', '.join(_LOADERS)}, got {path.suffix!r}")
    if path.stat().st_size == 0:
        return _empty_table()
    with _scratch_cache() as cache:
        try:
            table = load_dataset(_LOADERS[path.suffix], data_files=str(path), split="train", cache_dir=cache)
            return table.with_format("arrow")[:] if len(table) else _empty_table()
        except Exception as error:
            if no_space_left(error):
                raise
            root = list(causes(error))[-1]
            if "no data" in str(root):  # datasets' word for a file that holds an empty list
                return _empty_table()
            raise UserError(
                f"workload.data.source {source!r} cannot be read as {path.suffix[1:]}: {one_line(root)}"
            ) from error


def _empty_table() -> Any:
    import pyarrow as pa

    return pa.table({})


def _hub_table(source: str, data: dict[str, Any]) -> Any:
    from datasets import load_dataset

    revision = check_revision("data", source, data.get("revision"))
    split = str(data.get("split", "train"))
    try:
        table = load_dataset(source, name=data.get("subset"), split=split, revision=revision)
    except Exception as error:
        raise hub_error("data", source, revision, error) from error
    return table.with_format("arrow")[:]


def _columns(table: Any, data: dict[str, Any]) -> list[dict[str, Any]]:
    """The prompt and answer columns of an Arrow table."""
    found = list(table.column_names)
    if not table.num_rows:
        return []
    for setting in ("prompt_column", "answer_column"):
        if data[setting] not in found:
            raise UserError(
                f"workload.data.{setting} is {data[setting]!r}, but {data['source']!r} has the columns "
                f"{', '.join(found) or '(none)'}{nearest(data[setting], found)}"
            )
    prompts = table.column(data["prompt_column"]).to_pylist()
    answers = table.column(data["answer_column"]).to_pylist()
    empty = sum(prompt is None or answer is None for prompt, answer in zip(prompts, answers, strict=True))
    if empty:
        raise UserError(
            f"{empty} of {len(prompts)} rows of {data['source']!r} have no {data['prompt_column']!r} or no "
            f"{data['answer_column']!r}; remove them from the source"
        )
    return [{"question": prompt, "answer": answer} for prompt, answer in zip(prompts, answers, strict=True)]


@contextlib.contextmanager
def _scratch_cache() -> Iterator[str]:
    """A cache that is gone afterwards: datasets would otherwise keep a second copy of every local file it read."""
    with tempfile.TemporaryDirectory(prefix="rolloutbench-data-", ignore_cleanup_errors=True) as folder:
        yield folder
