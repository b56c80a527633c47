"""Reads the prompts and ground truths that a workload trains on, and makes the built-in sums."""

from __future__ import annotations

import datetime
import json
import math
import random
import tempfile
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.messages import did_you_mean, yaml_repr
from node.exit_codes import causes, no_space_left, one_line
from node.hub import hub_error, source_kind

DEFAULT_ROWS = 512


def arithmetic_rows(rows: int, seed: int) -> list[dict[str, str]]:
    """Short sums of one or two operations, as rows of `question` and `answer`.

    The same rows and seed give the same sums on every Python: only `Random.random` is drawn from, whose sequence
    is promised never to change. The answers are whole numbers, some of them negative.
    """
    draw = random.Random(seed).random

    def whole(low: int, high: int) -> int:
        return low + int(draw() * (high - low + 1))

    def pick(choices: tuple[str, ...]) -> str:
        return choices[whole(0, len(choices) - 1)]

    made = []
    for _ in range(rows):
        terms = [whole(2, 99), whole(2, 99)]
        signs = [pick(("+", "-", "*"))]
        if signs[0] == "*":
            terms[1] = whole(2, 12)
        if draw() < 0.5:
            signs.append(pick(("+", "-")))
            terms.append(whole(2, 99))
        value = {"+": terms[0] + terms[1], "-": terms[0] - terms[1], "*": terms[0] * terms[1]}[signs[0]]
        if len(signs) == 2:
            value += terms[2] if signs[1] == "+" else -terms[2]
        formula = f"{terms[0]}" + "".join(f" {sign} {term}" for sign, term in zip(signs, terms[1:], strict=True))
        form = pick(("What is {}?", "Compute {}.", "{} = ?"))
        made.append({"question": form.format(formula), "answer": str(value)})
    return made


BUILTIN_DATA = ("builtin:arithmetic",)
_LOADERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}


def read_examples(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The examples of a workload's data section, in verl's columns.

    Each is `{data_source, prompt: [{role, content}], reward_model: {style, ground_truth}, extra_info: {index,
    split}}`; `index` is the row's place in the source. With `columns` in the section, `extra_info` has their values as
    JSON, which every trainer hands on as it is. Raises `UserError` for a missing file or
    column, a prompt or answer that is neither text nor a number, no rows, or a hub that cannot be reached.
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
    _check_rows(rows, data)
    truths = ground_truths([row["answer"] for row in rows], data.get("answer_after"))
    system = data.get("system_prompt")
    opening = [{"role": "system", "content": str(system)}] if system else []
    return [
        {
            "data_source": source,
            "prompt": [*opening, {"role": "user", "content": str(row["question"])}],
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": {"index": index, "split": str(data.get("split", "train")), **row.get("further", {})},
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
    truths = [_without_thousands_commas(text.rsplit(answer_after, 1)[1].strip()) for text in texts]
    blank = [number for number, truth in enumerate(truths, start=1) if not truth]
    if blank:
        raise UserError(
            f"{len(blank)} of {len(texts)} answers have nothing after workload.data.answer_after = {answer_after!r}, "
            f"first in row {blank[0]} (got {yaml_repr(texts[blank[0] - 1])}); complete them or remove the rows"
        )
    return truths


def _check_rows(rows: Sequence[dict[str, Any]], data: dict[str, Any]) -> None:
    """Refuse prompts and answers that would be trained on as Python writes them, such as `['a']` or `nan`."""
    wrong = [
        (number, setting, row[key])
        for number, row in enumerate(rows, start=1)
        for key, setting in (("question", "prompt_column"), ("answer", "answer_column"))
        if not _is_text_or_number(row[key])
    ]
    if wrong:
        number, setting, value = wrong[0]
        count = len({number for number, _, _ in wrong})
        raise UserError(
            f"{count} of {len(rows)} rows of {data['source']!r} cannot be used; in row {number} column "
            f"{data[setting]!r} (workload.data.{setting}) must be text or a number, and not blank "
            f"(got {yaml_repr(value)}); mend or remove {'it' if count == 1 else 'them'}"
        )


def _is_text_or_number(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool) and math.isfinite(value)


def _without_thousands_commas(text: str) -> str:
    parts = text.split(",")
    grouped = len(parts) > 1 and all(len(part) >= 3 and part[:3].isdigit() for part in parts[1:])
    return "".join(parts) if grouped and parts[0][-1:].isdigit() else text


def _source_rows(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The source's rows as `question` and `answer`."""
    source = str(data["source"])
    kind = source_kind(source)
    if kind == "builtin":
        if data.get("columns"):
            raise UserError(f"workload.data.columns: {source!r} has no further columns; leave the list out")
        return list(arithmetic_rows(data.get("rows") or DEFAULT_ROWS, int(data.get("seed", 0))))
    if kind == "local":
        table = _local_table(source)
        written = _written_rows(Path(source).expanduser(), table.num_rows) if data.get("columns") else None
        return _columns(table, data, written)
    return _columns(_hub_table(source, data), data)


def _local_table(source: str) -> Any:
    from datasets import load_dataset

    path = Path(source).expanduser()
    if not path.is_file():
        raise UserError(f"workload.data.source {source!r} is not a file (seen from {Path.cwd()}); correct the path")
    if path.stat().st_size == 0:
        return _empty_table()
    # A cache that is gone afterwards: datasets would otherwise keep a second copy of every local file it read.
    with tempfile.TemporaryDirectory(prefix="rolloutbench-data-", ignore_cleanup_errors=True) as cache:
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
                f"workload.data.source {source!r} cannot be read as {path.suffix[1:]}: "
                f"{_broken_line(path) or one_line(root)}"
            ) from error


def _written_rows(path: Path, count: int) -> list[dict[str, Any]] | None:
    """The rows of a JSON file as they are written; None of another file.

    Arrow's JSON reader, which datasets has up to 4, puts the nulls of a list at its end (seen with pyarrow 20 and 26),
    and takes a date for a time.
    """
    if path.suffix == ".parquet":
        return None
    text = path.read_text(encoding="utf-8")
    try:
        rows = json.loads(text)
    except ValueError:
        rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    rows = [rows] if isinstance(rows, dict) else rows
    if len(rows) != count or not all(isinstance(row, dict) for row in rows):
        raise UserError(
            f"workload.data.source {str(path)!r} must be one JSON object for each line where workload.data.columns are "
            "asked for; write it as .jsonl or .parquet"
        )
    return list(rows)


def _broken_line(path: Path) -> str | None:
    """Which line of a .jsonl file is no JSON object, since datasets only tells a place in a block of lines."""
    if path.suffix != ".jsonl":
        return None
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line) if line.strip() else {}
            except ValueError as error:  # also where it is not UTF-8
                return f"line {number} is not JSON ({error}); mend or remove it"
            if not isinstance(row, dict):
                return f"line {number} must be a JSON object, one per line (got {yaml_repr(row)}); mend or remove it"
    return None


def _empty_table() -> Any:
    import pyarrow as pa

    return pa.table({})


def _hub_table(source: str, data: dict[str, Any]) -> Any:
    from datasets import load_dataset

    revision = str(data["revision"])
    split = str(data.get("split", "train"))
    try:
        table = load_dataset(source, name=data.get("subset"), split=split, revision=revision)
    except Exception as error:
        raise hub_error("data", source, revision, error) from error
    return table.with_format("arrow")[:]


def _columns(
    table: Any, data: dict[str, Any], written: Sequence[Mapping[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """The prompt and answer columns of an Arrow table, and as JSON those that rewards are given: of the rows as they
    are `written`, where these are known."""
    found, further = list(table.column_names), list(data.get("columns") or ())
    if not table.num_rows:
        return []
    asked = [(setting, data[setting]) for setting in ("prompt_column", "answer_column")]
    for setting, column in [*asked, *(("columns", column) for column in further)]:
        if column not in found:
            raise UserError(
                f"workload.data.{setting} is {column!r}, but {data['source']!r} has the columns "
                f"{', '.join(found) or '(none)'}{did_you_mean(column, found)}"
            )
    prompts, answers = _values(table, data["prompt_column"]), _values(table, data["answer_column"])
    rows = [{"question": prompt, "answer": answer} for prompt, answer in zip(prompts, answers, strict=True)]
    if not further:
        return rows
    if written is None:
        written = [
            dict(zip(further, of, strict=True)) for of in zip(*(_values(table, c) for c in further), strict=True)
        ]
    return [
        row | {"further": {"columns": _as_json({column: of.get(column) for column in further}, number)}}
        for number, (row, of) in enumerate(zip(rows, written, strict=True), start=1)
    ]


def _as_json(columns: Mapping[str, Any], number: int) -> str:
    """The columns of a row as JSON, dates as text; a `UserError` for what JSON has no word for."""
    texts = []
    for name, value in columns.items():
        try:
            texts.append(f"{json.dumps(name)}: {json.dumps(value, default=_date_text)}")
        except TypeError as error:
            raise UserError(
                f"workload.data.columns: row {number} has {error} in column {name!r}; rewards are given text, numbers, "
                "true or false, dates, lists and mappings; convert the column, or leave it out"
            ) from None
    return f"{{{', '.join(texts)}}}"


def _date_text(value: Any) -> str:
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    raise TypeError(f"a value of type {type(value).__name__}")


def _values(table: Any, column: str) -> list[Any]:
    values = list(table.column(column).to_pylist())
    # datasets gives a column that holds more than one type as JSON: the text 12 would come as "12", with its quotes.
    if str(table.schema.field(column).type) == "extension<arrow.json>":
        return [value if value is None else json.loads(value) for value in values]
    return values
