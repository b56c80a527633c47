"""The result files of benchmarks, and the names under which they have their numbers.

Read in vLLM 0.31 (benchmarks/serve.py, throughput.py, latency.py), SGLang 0.5.23 (benchmark/serving.py,
offline_throughput.py, one_batch.py, one_batch_server.py), GuideLLM 0.6 to 0.8 and AIPerf 0.12 and 0.13.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
    file_name: str = ""
    """The name that the tool gives it, among its other files of the same run."""


# GuideLLM's and AIPerf's first: they contain names of the others.
REQUESTS = (
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
        "aiperf-requests",
        "AIPerf's profile_export.jsonl",
        ("metadata.request_start_ns", "metrics"),
        of_requests=True,
    ),
    Form(
        "bench-serving",
        "the result of `vllm bench serve` or SGLang's bench_serving",
        ("duration", "completed", "request_throughput"),
        b'"request_throughput"',
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
BATCHES = (
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
NUMBERS: Mapping[str, tuple[str, ...]] = {
    "requests": (
        *("completed", "successful_requests", "num_requests", "batch_size"),
        *("request_count.avg", "metrics.request_totals.successful"),
    ),
    "requests_per_s": ("request_throughput.avg", "metrics.requests_per_second.successful.mean"),
    "seconds": ("duration", "total_latency", "elapsed_time", "latency", "avg_latency"),
    "all_response_tokens": ("total_output_tokens",),
    "all_prompt_tokens": ("total_input_tokens",),
    "response_tokens": (*("output_len", "output_sequence_length.avg", "metrics.output_token_count.successful.mean"),),
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
        "max_concurrency",
        "input_config.phases.concurrency",
        "config.strategy.streams",
        "config.strategy.max_concurrency",
    ),
}
TEXTS: Mapping[str, tuple[str, ...]] = {
    "backend": ("backend", "endpoint_type", "config.backend.kind"),
    "served_model": ("model_id", "server_info.model_path", "input_config.models.items.name", "config.backend.model"),
}
# The numbers of one request: AIPerf's; GuideLLM's, to which those of vLLM and SGLang are brought.
BY_REQUEST: Mapping[str, tuple[str, ...]] = {
    "latency_s": ("metrics.request_latency.value", "request_latency"),
    "first_token_s": ("metrics.time_to_first_token.value", "time_to_first_token_ms"),
    "response_tokens": ("metrics.output_sequence_length.value", "output_tokens"),
    "prompt_tokens": ("metrics.input_sequence_length.value", "prompt_tokens"),
}
