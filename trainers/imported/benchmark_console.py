"""Reads what `vllm bench serve` and SGLang's bench_serving print at their end, under the names of their files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainers.logs.log_files import parse_number, printouts

DURATION = "Benchmark duration (s):"
_HEAD = "Serving Benchmark Result"
_NAMES = {
    "Backend": "backend",
    "Successful requests": "completed",
    "Failed requests": "failed",
    "Benchmark duration (s)": "duration",
    "Total input tokens": "total_input_tokens",
    "Total generated tokens": "total_output_tokens",
    "Request throughput (req/s)": "request_throughput",
    "Maximum request concurrency": "max_concurrency",
    "Max request concurrency": "max_concurrency",
    "Request rate configured (RPS)": "request_rate",
    "Traffic request rate": "request_rate",
    "Mean TTFT (ms)": "mean_ttft_ms",
    "Mean TPOT (ms)": "mean_tpot_ms",
    "Mean E2EL (ms)": "mean_e2el_ms",
    "Mean E2E Latency (ms)": "mean_e2e_latency_ms",
}


def printed_results(path: Path) -> list[Mapping[str, Any]]:
    """The results of a console, each below its line `==== Serving Benchmark Result ====`."""
    found: list[dict[str, Any]] = []
    for part in printouts(path):
        if _HEAD in part.text:
            found.append({})
        name, colon, text = part.text.partition(":")
        if found and colon and (key := _NAMES.get(name.strip())):
            number = parse_number(text)
            found[-1][key] = text.strip() if number is None else number.value
    return [one for one in found if "duration" in one]
