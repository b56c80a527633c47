"""Benchmarks of an engine alone: the result files, and the names under which they have their numbers. None trains.

A result is one step. It stands for one request: its seconds are those from one answer to the next, by the requests a
second that the file states, and its tokens are means, so that results of different numbers of requests are compared.
The benchmarks of one batch are a trainer of their own, whose step is that batch. Read in vLLM 0.31 and SGLang 0.5.23
(each tool's own file), GuideLLM 0.6 to 0.8 and AIPerf 0.12 and 0.13.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any

from common.dotted import as_list, as_mapping, lookup
from common.errors import UserError
from common.verdicts import Level, Verdict, count_of
from trainers.imported.benchmark_console import DURATION, printed_results
from trainers.logs.log_files import json_objects
from trainers.logs.record import TIMERS, Imported, SourceRead, StepRecord, finite_number
from trainers.protocol import LogFormat, Logs, Rules, Trainer
from trainers.timers.tree import Phase, TimerTree

_ENGINES = ("vllm", "sglang", "lmdeploy", "transformers")
_PREFIX = "benchmark/"
FAILED, RATE = "requests-failed", "client-set-the-rate"
# A client that reaches so much of its own rate has measured that rate, not the engine.
_RATE_REACHED = 0.9
# From this share on, requests without an answer change the throughput.
_UNANSWERED_SHARE = 0.01


@dataclass(frozen=True)
class Form:
    """One tool's file. Its objects have these dotted keys (`has`); a document over many lines contains the mark."""

    name: str
    what: str
    has: tuple[str, ...]
    mark: bytes = b""
    engine: str = ""
    """The engine, where the tool runs no other."""
    results: str = ""
    """The key with the list of results, where the file has one."""
    of_requests: bool = False
    """Whether each object is one request, and all of them are one result."""
    printed: str = ""
    """A part of the lines that the tool prints of a result, where they are read, too."""
    file_name: str = ""
    """The name that the tool gives it, among its other files of the same run."""


# GuideLLM's and AIPerf's first: they contain names of the others.
_REQUESTS = (
    Form(
        "guidellm",
        "GuideLLM's benchmarks.json",
        ("metadata.guidellm_version", "benchmarks"),
        b'"guidellm_version"',
        results="benchmarks",
        file_name="benchmarks.json",
    ),
    Form(
        "aiperf",
        "AIPerf's profile_export_aiperf.json",
        ("request_latency.avg", "input_config"),
        b'"input_config"',
        file_name="profile_export_aiperf.json",
    ),
    Form(
        "aiperf-requests", "AIPerf's profile_export.jsonl", ("metadata.request_start_ns", "metrics"), of_requests=True
    ),
    Form(
        "bench-serving",
        "the result of `vllm bench serve` or SGLang's bench_serving, or what they printed",
        ("duration", "completed", "request_throughput"),
        b'"request_throughput"',
        printed=DURATION,
    ),
    Form(
        "sglang-bench-offline",
        "the result of SGLang's bench_offline_throughput",
        ("successful_requests", "total_latency"),
        engine="sglang",
    ),
    Form(
        "vllm-bench-throughput",
        "the result of `vllm bench throughput`",
        ("elapsed_time", "num_requests", "tokens_per_second"),
        b'"requests_per_second"',
        engine="vllm",
    ),
)
_BATCHES = (
    Form(
        "sglang-bench-one-batch",
        "the result of SGLang's bench_one_batch or bench_one_batch_server",
        ("batch_size", "input_len", "output_len", "overall_throughput"),
        engine="sglang",
    ),
    Form(
        "vllm-bench-latency",
        "the result of `vllm bench latency`",
        ("avg_latency", "latencies"),
        b'"avg_latency"',
        engine="vllm",
    ),
)

# Each number by its dotted names, of which the first that a result has counts; a list of objects stands for its last.
# `_ms` in a name, or a unit beside it, is milliseconds. In turn: vLLM and SGLang; AIPerf; GuideLLM.
_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "requests": (
        *("completed", "successful_requests", "num_requests", "batch_size"),
        *("request_count.avg", "metrics.request_totals.successful"),
    ),
    "requests_per_s": ("request_throughput.avg", "metrics.requests_per_second.successful.mean"),
    "seconds": ("duration", "total_latency", "elapsed_time", "latency", "avg_latency"),
    "all_response_tokens": ("total_output_tokens",),
    "all_prompt_tokens": ("total_input_tokens",),
    "response_tokens": ("output_len", "output_sequence_length.avg", "metrics.output_token_count.successful.mean"),
    "prompt_tokens": ("input_len", "input_sequence_length.avg", "metrics.prompt_token_count.successful.mean"),
    "first_token_s": (
        *("mean_ttft_ms", "last_ttft", "prefill_latency"),
        *("time_to_first_token.avg", "metrics.time_to_first_token_ms.successful.mean"),
    ),
    "later_token_s": (
        *("mean_tpot_ms", "median_decode_latency"),
        *("inter_token_latency.avg", "metrics.inter_token_latency_ms.successful.mean"),
    ),
    "latency_s": (
        *("mean_e2el_ms", "mean_e2e_latency_ms"),
        *("request_latency.avg", "metrics.request_latency.successful.mean"),
    ),
    "failed": ("failed", "error_request_count.avg", "metrics.request_totals.errored"),
    "cut_off": ("metrics.request_totals.incomplete",),
    "rate": ("request_rate", "input_config.phases.rate", "config.strategy.rate"),
    "at_once": (
        *("max_concurrency", "input_config.phases.concurrency"),
        *("config.strategy.streams", "config.strategy.max_concurrency"),
    ),
}
_TEXTS: Mapping[str, tuple[str, ...]] = {
    "backend": ("backend", "endpoint_type", "config.backend.kind"),
    "served_model": ("model_id", "server_info.model_path", "input_config.models.items.name", "config.backend.model"),
}
# The numbers of one request: AIPerf's; GuideLLM's, to which those of vLLM and SGLang are brought.
_BY_REQUEST: Mapping[str, tuple[str, ...]] = {
    "latency_s": ("metrics.request_latency.value", "request_latency"),
    "first_token_s": ("metrics.time_to_first_token.value", "time_to_first_token_ms"),
    "response_tokens": ("metrics.output_sequence_length.value", "output_tokens"),
    "prompt_tokens": ("metrics.input_sequence_length.value", "prompt_tokens"),
}


def _read(path: Path, form: Form, of_batches: bool) -> Imported:
    read, texts, doubts = SourceRead(), dict[str, dict[str, None]](), dict[str, list[Verdict]]()
    for number, result in _numbered(_results(path, form)):
        values, requests = _flat(result), _by_request(result, path)
        found = {name: math.fsum(one / len(some) for one in some) for name, some in requests.items()}
        found |= {name: one for name, names in _NUMBERS.items() if (one := _first(values, names)) is not None}
        count = found.get("requests", 1.0 if of_batches else 0.0)
        per_s = found.get("requests_per_s") or count / (found.get("seconds") or math.inf)
        if not (count > 0 and 0 < per_s < math.inf):
            raise UserError(
                f"{path}: result {number} has no answered request or no duration: the benchmark has failed; run it "
                "again, or remove this result"
            )
        # A result of requests stands for one of them, a batch for all of its own.
        work = count if of_batches else 1.0
        scalars = {TIMERS + "step": work / per_s}
        for name in ("response_tokens", "prompt_tokens"):
            mean = found.pop(name, found.get(f"all_{name}", math.nan) / count)
            if mean > 0:
                scalars[name] = mean * work
                scalars[f"{_PREFIX}{name}_per_s"] = mean * per_s
        found = {"latency_s": work / per_s} | found if of_batches else found
        scalars |= {_PREFIX + name: value for name, value in (found | {"requests_per_s": per_s}).items()}
        samples = {_PREFIX + name: some for name, some in requests.items()}
        read.records[number] = StepRecord(number, {}, scalars, samples, None, path, number)
        for verdict in _doubts(f"{path}: result {number}", found, count, per_s):
            doubts.setdefault(verdict.code, []).append(verdict)
        for name, text in _texts(values, found, form, of_batches).items():
            texts.setdefault(name, {})[text] = None
    if not read.records:
        raise UserError(f"{path} has no result: the benchmark was stopped before its first, or failed; run it again")
    for same in doubts.values():
        more = f" ({len(same) - 1} more results like it)" if len(same) > 1 else ""
        read.verdicts.append(replace(same[0], text=same[0].text + more))
    config = {name: ", ".join(some) for name, some in texts.items()}
    return Imported(read, form.name, config=config, versions={(BATCH if of_batches else REQUEST).name: "1"})


def _results(path: Path, form: Form) -> list[Mapping[str, Any]]:
    found = (printed_results(path) if form.printed else []) or list(json_objects(path))
    if form.results:
        return [result for one in found for result in as_list(one.get(form.results)) if isinstance(result, Mapping)]
    if not form.of_requests:
        return found
    answered = [one for one in found if not one.get("error")]
    ends = [[finite_number(lookup(one, f"metadata.request_{end}_ns")) for one in answered] for end in ("start", "end")]
    times = [[time for time in some if time is not None] for some in ends]
    span_s = (max(times[1]) - min(times[0])) / 1e9 if all(times) else 0.0
    failed = len(found) - len(answered)
    return [{"completed": len(answered), "failed": failed, "duration": span_s, "requests": {"successful": answered}}]


def _numbered(results: Sequence[Mapping[str, Any]]) -> Iterable[tuple[int, Mapping[str, Any]]]:
    """The results of several loads by their loads, so that those of one load are compared; others by their place."""
    for names in (_NUMBERS["at_once"], ("batch_size",), _NUMBERS["rate"]):
        loads = [int(load) for one in results if (load := _first(_flat(one), names)) and load.is_integer()]
        if 1 < len(results) == len({*loads}) == len(loads):
            return sorted(zip(loads, results, strict=True), key=itemgetter(0))
    return enumerate(results, start=1)


def _by_request(result: Mapping[str, Any], path: Path) -> dict[str, list[float]]:
    """The numbers of each answered request, if the file has them, or AIPerf's other file beside it."""
    requests = as_mapping(result.get("requests")).get("successful")
    export = path.with_name("profile_export.jsonl")
    if requests is None and "input_config" in result and export.is_file():
        requests = [one for one in json_objects(export) if not one.get("error")]
    elif requests is None and isinstance(result.get("ttfts"), list):
        requests = list(_joined(result))
    flat = [_flat(one) for one in as_list(requests) if isinstance(one, Mapping)]
    columns = {
        name: [number for one in flat if (number := _first(one, names)) is not None]
        for name, names in _BY_REQUEST.items()
    }
    return {name: numbers for name, numbers in columns.items() if numbers}


def _joined(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The answered requests in the lists of vLLM and SGLang; the time between tokens is a list of each."""
    lists = [as_list(result.get(name)) for name in ("ttfts", "itls", "output_lens", "input_lens", "errors")]
    for first, later, output_tokens, prompt_tokens, error in zip_longest(*lists):
        times_s = [time_s for one in (first, *as_list(later)) if (time_s := finite_number(one)) is not None]
        if isinstance(later, list) and len(times_s) == 1 + len(later) and not error:
            found = {"time_to_first_token_ms": 1000 * times_s[0], "request_latency": sum(times_s)}
            yield found | {"output_tokens": output_tokens, "prompt_tokens": prompt_tokens}


def _flat(result: Mapping[str, Any]) -> dict[str, Any]:
    """The values by dotted name; a list of objects stands for its last one: of AIPerf's phases the measured one."""
    found: dict[str, Any] = {}
    for key, value in result.items():
        if isinstance(value, list) and value and isinstance(value[-1], Mapping):
            value = value[-1]
        if isinstance(value, Mapping):
            found |= {f"{key}.{name}": one for name, one in _flat(value).items()}
        else:
            found[key] = value
    return found


def _first(values: Mapping[str, Any], names: Sequence[str]) -> float | None:
    """The first of these numbers that a result has, in seconds where it is a time."""
    for name in names:
        if (number := finite_number(values.get(name))) is not None:
            unit = values.get(f"{name.rpartition('.')[0]}.unit")
            return number / 1000 if unit == "ms" or re.search(r"_ms(\.|$)", name) else number
    return None


def _texts(values: Mapping[str, Any], found: Mapping[str, float], form: Form, of_batches: bool) -> dict[str, str]:
    """What the fairness ledger compares: the engine, the client, the model and the load."""
    texts = {name: next((str(values[one]) for one in names if values.get(one)), "") for name, names in _TEXTS.items()}
    # `sglang-oai-chat` and `vllm_python` name the engine first, `openai` names none.
    engine = form.engine or re.split(r"[-_]", texts["backend"])[0]
    texts |= {"client": form.name, "backend": engine if engine in _ENGINES else ""}
    if of_batches:
        sizes = [values.get(name) for name in ("batch_size", "input_len", "output_len")]
        texts["load"] = "{} x {} + {} tokens".format(*sizes) if None not in sizes else ""
    elif "rate" in found:
        texts["load"] = f"{found['rate']:.4g} requests/s"
    else:
        texts["load"] = f"{found['at_once']:.0f} at once" if "at_once" in found else "all at once"
    return {name: text for name, text in texts.items() if text}


def _doubts(result: str, found: Mapping[str, float], count: float, per_s: float) -> Iterator[Verdict]:
    if failed := int(found.get("failed", 0) + found.get("cut_off", 0)):
        level: Level = "warning" if failed >= _UNANSWERED_SHARE * count else "note"
        text = f"{result}: {count_of(failed, 'request')} of {int(count) + failed} without an answer; only answers count"
        yield Verdict(level, FAILED, text)
    if "rate" in found and per_s >= _RATE_REACHED * found["rate"]:
        text = (
            f"{result}: its client sent {found['rate']:.4g} requests/s, and {per_s:.4g}/s were answered: the client "
            "set this throughput, not the engine. Compare the latencies, or run it with a higher rate"
        )
        yield Verdict("warning", RATE, text)


def _log_format(form: Form, of_batches: bool) -> LogFormat:
    read = partial(_read, form=form, of_batches=of_batches)
    return LogFormat(
        form.name,
        form.what,
        read,
        is_step=(lambda part: form.printed in part.text) if form.printed else None,
        is_row=lambda row: all(lookup(row, name) is not None for name in form.has),
        mark=form.mark,
        file_name=form.file_name,
    )


def _trainer(name: str, unit: str, forms: Sequence[Form], shown: Mapping[str, str]) -> Trainer:
    root = Phase("step", unit.capitalize(), f"The seconds of one {unit}.", "generation", ("step",))
    return Trainer(
        name=name,
        label="a benchmark of an engine alone" if unit == "request" else "a benchmark of one batch",
        engines=_ENGINES,
        trains=False,
        step_of=unit,
        keys={"engine": ("backend",), "model": ("served_model",)},
        logs=Logs(
            declared=lambda: (TimerTree(name, "1", _ENGINES, (root,), ", ".join(form.what for form in forms)),),
            formats=tuple(_log_format(form, unit == "batch") for form in forms),
            printed={_PREFIX + name: (text, 1000.0 if text.startswith("ms") else 1.0) for name, text in shown.items()},
            printed_verdicts=(FAILED, RATE),
        ),
        # The ledger's row of the model has it.
        rules=Rules(bookkeeping=frozenset({"served_model"})),
    )


_LATENCIES = {"first_token_s": "ms to the first token", "later_token_s": "ms for each later one"}
REQUEST = _trainer(
    "benchmark",
    "request",
    _REQUESTS,
    {"requests": "requests", "requests_per_s": "requests/s", "response_tokens_per_s": "output tokens/s"}
    | _LATENCIES
    | {"latency_s": "s per request"},
)
BATCH = _trainer(
    "batch-benchmark",
    "batch",
    _BATCHES,
    {"latency_s": "s per batch", "response_tokens_per_s": "output tokens/s"} | _LATENCIES,
)
