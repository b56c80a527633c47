"""The engines' own benchmarks: what their result files hold. They run an engine alone, so none trains.

Read in vLLM 0.31 (benchmarks/serve.py, throughput.py) and SGLang 0.5.23 (benchmark/serving.py, offline_throughput.py).
A result is one step, which stands for one request: its seconds are the benchmark's over the number of requests, its
tokens are means, so that results of different numbers of requests are compared. A file with several results (SGLang
appends a line for each) has as many steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.verdicts import Verdict, count_of
from trainers.logs.log_files import open_log
from trainers.logs.record import TIMERS, Imported, SourceRead, StepRecord, as_number
from trainers.protocol import LogFormat, Trainer
from trainers.timers.tree import Phase, TimerTree

_ENGINES = ("vllm", "sglang", "lmdeploy", "transformers")
# A result's seconds, and its requests, by the benchmark that writes it.
_SECONDS = ("duration", "total_latency", "elapsed_time")
_REQUESTS = ("completed", "successful_requests", "num_requests")
_TOKENS = {"total_output_tokens": "response_tokens", "total_input_tokens": "prompt_tokens"}
SERVING, OFFLINE, THROUGHPUT = "bench-serving", "sglang-bench-offline", "vllm-bench-throughput"
_STEP = Phase("step", "Request", "From the first request to the last answer, by request.", "generation", ("step",))


def _results(path: Path) -> Iterator[dict[str, Any]]:
    with open_log(path) as file:
        text = file.read().decode("utf-8", errors="replace")
    try:
        whole = json.loads(text)
        yield from whole if isinstance(whole, list) else [whole]
    except ValueError:
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise UserError(f"{path}:{number} is no JSON ({error}); copy the file again") from None


def _read(path: Path, form: str, engine: str = "") -> Imported:
    read, config = SourceRead(), dict[str, str]()
    failed = 0
    for number, result in enumerate(_results(path), start=1):
        numbers = {name: value for name, raw in result.items() if (value := as_number(raw)) is not None}
        seconds, requests = (next((numbers[n] for n in names if n in numbers), 0.0) for names in (_SECONDS, _REQUESTS))
        if not (seconds > 0 and requests > 0):
            raise UserError(f"{path}: result {number} has no duration or no answered request: the benchmark has failed")
        scalars = {f"benchmark/{name}": value for name, value in numbers.items()}
        scalars |= {_TOKENS[name]: numbers[name] / requests for name in _TOKENS if name in numbers}
        scalars[TIMERS + "step"] = seconds / requests
        failed += int(numbers.get("failed", 0))
        read.records[number] = StepRecord(number, {}, scalars, {}, None, path, number)
        config = {"backend": engine or str(result.get("backend", ""))}
    if failed:
        text = f"{path}: {count_of(failed, 'request')} failed; the seconds are of all, the tokens of those that did not"
        read.verdicts.append(Verdict("warning", "requests-failed", text))
    return Imported(read, form, config=config, versions={"benchmark": "1"})


def _has(*names: str) -> Any:
    def is_row(row: Mapping[str, Any]) -> bool:
        return all(name in row for name in names)

    return is_row


BENCHMARK = Trainer(
    name="benchmark",
    label="an engine's own benchmark",
    engines=_ENGINES,
    trains=False,
    keys={"engine": ("backend",)},
    trees=(TimerTree("benchmark", "1", _ENGINES, (_STEP,), "the result files of vLLM 0.31 and SGLang 0.5.23"),),
    formats=(
        LogFormat(
            SERVING,
            "the result of `vllm bench serve` or SGLang's bench_serving",
            lambda path: _read(path, SERVING),
            is_row=_has("duration", "completed", "request_throughput"),
            mark=b'"request_goodput"',
            preview=lambda path, parts, versioned: _read(path, SERVING),
        ),
        LogFormat(
            OFFLINE,
            "the result of SGLang's bench_offline_throughput",
            lambda path: _read(path, OFFLINE, "sglang"),
            is_row=_has("successful_requests", "total_latency"),
            preview=lambda path, parts, versioned: _read(path, OFFLINE, "sglang"),
        ),
        LogFormat(
            THROUGHPUT,
            "the result of `vllm bench throughput`",
            lambda path: _read(path, THROUGHPUT, "vllm"),
            is_row=_has("elapsed_time", "num_requests", "tokens_per_second"),
            mark=b'"requests_per_second"',
            preview=lambda path, parts, versioned: _read(path, THROUGHPUT, "vllm"),
        ),
    ),
)
