"""The kit's stages: what each carries, runs, and may take. Standard library only: the target reads it, too.

A stage is small on purpose. A machine may be lent for a quarter of an hour, so the easiest proof comes first, and what
one stage shows stays true if the next one fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.errors import UserError
from common.messages import unknown_name

PYTHON, TORCH = "3.12", "2.11.0"
"""The target's Python release and torch."""
PLATFORM = "manylinux_2_35_x86_64"


@dataclass(frozen=True)
class Bundle:
    """Wheels that travel together: packages of one stack's lock, without those that the target has."""

    stack: str
    packages: tuple[str, ...]
    without: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By package: patterns of files in its wheel that one H100 does not need."""


@dataclass(frozen=True)
class StageTask:
    """One run of a stage's experiment on the target."""

    run_id: str
    stop_after: int = 0
    """Ask the run to stop when so many steps are logged, then resume it in a second attempt."""
    synchronized: bool = True
    """Whether the phase clock waits for the GPU; without it a phase ends when its kernels are queued."""

    @property
    def name(self) -> str:
        """The task's name in messages and results."""
        return self.run_id if self.synchronized else f"{self.run_id}-unsynchronized"


@dataclass(frozen=True)
class Stage:
    """What is run after one or several uploads, in one command."""

    title: str
    experiment: str
    bundles: tuple[str, ...]
    tasks: tuple[StageTask, ...]
    limit_s: int
    """Seconds for all tasks together; what has finished by then stays."""
    probes: str = ""
    """The stack whose GPU probes run first."""
    rehearsed: bool = False
    """Whether it has a small twin that runs on a CPU."""


_WANDB = (
    *("wandb", "cwevals", "distro", "googleapis-common-protos", "platformdirs", "sniffio", "pydantic"),
    *("pydantic-core", "annotated-types", "typing-inspection", "opentelemetry-api", "opentelemetry-sdk"),
    *("opentelemetry-exporter-otlp-proto-common", "opentelemetry-exporter-otlp-proto-http", "opentelemetry-proto"),
    "opentelemetry-semantic-conventions",
)
BUNDLES: Mapping[str, Bundle] = {
    "trl": Bundle(
        "trl-transformers",
        (
            *("trl", "datasets", "dill", "multiprocess", "xxhash", "math-verify", "latex2sympy2-extended"),
            *("antlr4-python3-runtime", *_WANDB),
            *("opentelemetry-exporter-http-transport", "opentelemetry-exporter-otlp-common"),
        ),
    ),
    # What importing and running `vllm.LLM` needs beside the bundle `trl`; the rest of its requirements is for servers,
    # images and other models.
    "vllm": Bundle(
        "verl09-vllm",
        (
            *("vllm", "apache-tvm-ffi", "cachetools", "cbor2", "fastapi", "llguidance", "msgspec", "openai"),
            *("openai-harmony", "partial-json-parser", "pybase64", "pyzmq", "starlette", "xgrammar"),
        ),
        {
            "vllm": (
                "vllm/vllm_flash_attn/_vllm_fa2_C*",  # an H100 uses FlashAttention 3
                "vllm/vllm-rs",  # a server's front end
                "vllm/third_party/*/include/*",
                "vllm/third_party/deep_gemm/_C.cpython-31[0134]*",
                "vllm/_qutlass_C*",
                "vllm/entrypoints/serve/instrumentator/static/*",
            ),
        },
    ),
    # What verl's trainer, its workers and its vLLM server import beside the bundle `vllm`, and the lock's transformers.
    # Without flash-attn: gpu_kit/experiments/verl.yaml.
    "verl": Bundle(
        "verl09-vllm",
        (
            *("verl", "ray", "tensordict", "transferqueue", "torchdata", "datasets", "dill", "multiprocess", "xxhash"),
            *("transformers", "tokenizers", "huggingface-hub", "safetensors", "hydra-core", "omegaconf", "math-verify"),
            *("antlr4-python3-runtime", "latex2sympy2-extended", "codetiming", "pyvers", "orjson"),
            *("cloudpickle", "einops", "aiohttp", "aiosignal", "aiohappyeyeballs", "attrs", "frozenlist", "multidict"),
            *("propcache", "yarl", "click", "jsonschema", "jsonschema-specifications", "referencing", "rpds-py"),
            *("msgpack", "protobuf", "requests", "urllib3", "certifi", "charset-normalizer", "idna", "h11", "httpcore"),
            *("httpx", "jmespath", "jiter", "model-hosting-container-standards", "prometheus-client"),
            *("prometheus-fastapi-instrumentator", "py-cpuinfo", "python-multipart", "setproctitle", "tiktoken"),
            *("uvicorn", "uvloop", "watchfiles", "compressed-tensors", *_WANDB),
        ),
        {"ray": ("ray/jars/*", "ray/rllib/*", "ray/dashboard/client/*")},
    ),
    # What importing and running `sglang.Engine` needs beside the bundle `trl`. The target's transformers is too new for
    # this SGLang: both register the same models. Without nvidia-cutlass-dsl FlashInfer compiles its norms with nvcc.
    "sglang": Bundle(
        "verl09-sglang",
        (
            *("sglang", "sglang-kernel", "flashinfer-python", "apache-tvm-ffi", "torch-memory-saver", "transformers"),
            *("tokenizers", "huggingface-hub", "hf-xet", "safetensors", "compressed-tensors", "fastapi", "starlette"),
            *("gguf", "ipython", "traitlets", "loguru", "msgspec", "openai", "orjson", "partial-json-parser"),
            *("pybase64", "pyzmq", "setproctitle", "uvicorn"),
        ),
        {
            "sglang-kernel": ("sgl_kernel/sm100/*", "sgl_kernel/flashmla_ops*", "lib/*mscclpp*", "_mscclpp*"),
            "torch-memory-saver": ("*_cu12.abi3.so",),
        },
    ),
}
STAGES: Mapping[str, Stage] = {
    "trl": Stage(
        "TRL trains with transformers, stops and resumes",
        "gpu_kit/experiments/trl.yaml",
        ("trl",),
        (StageTask("transformers-s0", stop_after=3), StageTask("transformers-s0", synchronized=False)),
        240,
        probes="trl-transformers",
        rehearsed=True,
    ),
    "graphs": Stage(
        "vLLM alone: eager and CUDA graphs, each with and without CUDA_LAUNCH_BLOCKING",
        "gpu_kit/experiments/graphs.yaml",
        ("trl", "vllm"),
        (
            StageTask("graphs-s0"),
            StageTask("eager-s0"),
            StageTask("eager-blocking-s0"),
            StageTask("graphs-blocking-s0"),
        ),
        480,
    ),
    "trl-vllm": Stage(
        "TRL trains with vLLM in its process, which sleeps and wakes",
        "gpu_kit/experiments/trl.yaml",
        ("trl", "vllm"),
        (StageTask("vllm-s0", stop_after=3),),
        240,
    ),
    "verl": Stage(
        "verl trains with vLLM, stops and resumes",
        "gpu_kit/experiments/verl.yaml",
        ("vllm", "verl"),
        (StageTask("vllm-s0", stop_after=3),),
        480,
    ),
    "sglang": Stage(
        "SGLang alone: eager and CUDA graphs, each with and without CUDA_LAUNCH_BLOCKING",
        "gpu_kit/experiments/graphs.yaml",
        ("trl", "sglang"),
        tuple(StageTask(f"sglang-{arm}-s0") for arm in ("graphs", "eager", "eager-blocking", "graphs-blocking")),
        480,
    ),
}


def stage_named(name: str) -> Stage:
    """A stage; `UserError` for an unknown name."""
    if name not in STAGES:
        raise UserError(unknown_name("stage", name, list(STAGES)))
    return STAGES[name]
