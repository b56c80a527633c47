"""The benchmark of an engine's server: results of `vllm bench serve` (0.31) and SGLang's bench_serving (0.5.23).

None trains. A result is one step that stands for one request: its seconds are those from one answer to the next, by the
requests a second that the file states, and its tokens are means, so that results of different numbers of requests are
compared. The file of each tool is read, and what it prints at its end.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any

from common.dotted import as_list
from common.errors import UserError
from common.verdicts import Level, Verdict, count_of
from trainers.described import trainer_of
from trainers.logs.log_files import json_objects, parse_number, printouts
from trainers.logs.record import TIMERS, Imported, SourceRead, StepRecord, finite_number
from trainers.protocol import LogFormat

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_FORMAT = "bench-serving"
_PREFIX = "benchmark/"
_WHAT = "the result of `vllm bench serve` or SGLang's bench_serving, or what they printed"
# A client that reaches so much of its own rate has measured that rate, not the engine.
_RATE_REACHED = 0.9
# From this share on, requests without an answer change the throughput.
_UNANSWERED_SHARE = 0.01
_HAS = ("duration", "completed", "request_throughput")
_HEAD, _DURATION = "Serving Benchmark Result", "Benchmark duration (s):"


def _read(path: Path) -> Imported:
    read, texts, doubts = SourceRead(), dict[str, dict[str, None]](), dict[str, list[Verdict]]()
    for number, result in _numbered(_printed_results(path) or list(json_objects(path))):
        where = f"{path}: result {number}"
        count = finite_number(result.get("completed")) or 0.0
        per_s = count / (finite_number(result.get("duration")) or float("inf"))
        if not (count > 0 and 0 < per_s < float("inf")):
            raise UserError(
                f"{where} has no answered request or no duration: the benchmark has failed; run it again, or remove "
                "this result"
            )
        read.records[number] = _record(result, count, per_s, path, number)
        for verdict in _doubts(where, result, count, per_s):
            doubts.setdefault(verdict.code, []).append(verdict)
        for name, text in _texts(result).items():
            texts.setdefault(name, {})[text] = None
    if not read.records:
        raise UserError(f"{path} has no result: the benchmark was stopped before its first, or failed; run it again")
    for same in doubts.values():
        more = f" ({len(same) - 1} more results like it)" if len(same) > 1 else ""
        read.verdicts.append(replace(same[0], text=same[0].text + more))
    config = {name: ", ".join(some) for name, some in texts.items()}
    return Imported(read, _FORMAT, config=config, versions={BENCHMARK.name: "1"})


def _printed_results(path: Path) -> list[Mapping[str, Any]]:
    """The results of a console, each below its line `==== Serving Benchmark Result ====`."""
    found: list[dict[str, Any]] = []
    for part in printouts(path):
        if _HEAD in part.text:
            found.append({})
        name, colon, text = part.text.partition(":")
        if found and colon and (key := _TABLE["printed"].get(name.strip())):
            number = parse_number(text)
            found[-1][key] = text.strip() if number is None else number.value
    return [one for one in found if "duration" in one]


def _numbered(results: Sequence[Mapping[str, Any]]) -> Iterable[tuple[int, Mapping[str, Any]]]:
    """The results of several loads by their loads, so that those of one load are compared; others by their place."""
    for name in ("max_concurrency", "request_rate"):
        loads = [int(load) for one in results if (load := finite_number(one.get(name))) and load.is_integer()]
        if 1 < len(results) == len({*loads}) == len(loads):
            return sorted(zip(loads, results, strict=True), key=itemgetter(0))
    return enumerate(results, start=1)


def _record(result: Mapping[str, Any], count: float, per_s: float, path: Path, number: int) -> StepRecord:
    scalars = {TIMERS + "step": 1.0 / per_s, f"{_PREFIX}requests": count, f"{_PREFIX}requests_per_s": per_s}
    for name, key in (("response_tokens", "total_output_tokens"), ("prompt_tokens", "total_input_tokens")):
        if tokens := finite_number(result.get(key)):
            scalars |= {name: tokens / count, f"{_PREFIX}{name}_per_s": tokens / count * per_s}
    for name, keys in _TABLE["latencies"].items():
        if (
            found := next((ms for key in keys if (ms := finite_number(result.get(key))) is not None), None)
        ) is not None:
            scalars[_PREFIX + name] = found / 1000
    samples = {_PREFIX + name: numbers for name, numbers in _by_request(result).items() if numbers}
    return StepRecord(number, {}, scalars, samples, None, path, number)


def _by_request(result: Mapping[str, Any]) -> dict[str, list[float]]:
    """The numbers of each answered request, if the file has them; the time between tokens is a list of each."""
    found: dict[str, list[float]] = {"latency_s": [], "first_token_s": [], "response_tokens": [], "prompt_tokens": []}
    lists = [as_list(result.get(name)) for name in ("ttfts", "itls", "output_lens", "input_lens", "errors")]
    for first, later, response_tokens, prompt_tokens, error in zip_longest(*lists):
        times_s = [time_s for one in (first, *as_list(later)) if (time_s := finite_number(one)) is not None]
        if not isinstance(later, list) or len(times_s) != 1 + len(later) or error:
            continue
        numbers = (sum(times_s), times_s[0], finite_number(response_tokens), finite_number(prompt_tokens))
        for name, one in zip(found, numbers, strict=True):
            found[name] += [one] if one is not None else []
    return found


def _texts(result: Mapping[str, Any]) -> dict[str, str]:
    """What the fairness ledger compares: the engine, the model and the load."""
    rate, at_once = (finite_number(result.get(name)) for name in ("request_rate", "max_concurrency"))
    # `sglang-oai-chat` and `vllm_python` name the engine first, `openai` names none.
    engine = re.split(r"[-_]", str(result.get("backend") or result.get("endpoint_type") or ""))[0]
    info = result.get("server_info")
    model = result.get("model_id") or (info.get("model_path") if isinstance(info, Mapping) else "")
    load = (
        f"{rate:.4g} requests/s" if rate is not None else "all at once" if at_once is None else f"{at_once:.0f} at once"
    )
    texts = {"backend": engine if engine in _TABLE["engines"] else "", "served_model": str(model or ""), "load": load}
    return {name: text for name, text in texts.items() if text}


def _doubts(result: str, found: Mapping[str, Any], count: float, per_s: float) -> Iterator[Verdict]:
    if failed := int(finite_number(found.get("failed")) or 0):
        level: Level = "warning" if failed >= _UNANSWERED_SHARE * count else "note"
        text = f"{result}: {count_of(failed, 'request')} of {int(count) + failed} without an answer; only answers count"
        yield Verdict(level, "requests-failed", text)
    rate = finite_number(found.get("request_rate"))
    if rate is not None and per_s >= _RATE_REACHED * rate:
        text = (
            f"{result}: its client sent {rate:.4g} requests/s, and {per_s:.4g}/s were answered: the client set this "
            "throughput, not the engine. Compare the latencies, or run it with a higher rate"
        )
        yield Verdict("warning", "client-set-the-rate", text)


BENCHMARK = trainer_of(
    "benchmark",
    _TABLE,
    (
        LogFormat(
            _FORMAT,
            _WHAT,
            _read,
            is_step=lambda part: _DURATION in part.text or '"request_throughput"' in part.text,
            is_row=lambda row: all(row.get(name) is not None for name in _HAS),
        ),
    ),
    step="request to an engine alone",
)
