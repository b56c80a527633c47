"""On what did a run generate: which GPUs, how split, which model? As its files say; what they do not say is unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.roofline.gpus import KNOWN_GPUS, gpu_of, known_name
from analysis.roofline.models import COUNTED, ModelFacts, model_facts
from analysis.runs import Run
from analysis.settings import flat, overrides_by_key

_ROLLOUT = "actor_rollout_ref.rollout"
_BYTES: Mapping[str, int] = {
    **{"float32": 4, "fp32": 4, "float": 4},
    **{"bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2, "half": 2},
}
# Below this much of the weights lies in the chip's caches (50 MB on an H100), which are faster than its memory.
_LEAST_WEIGHTS = 0.5e9
# With these an iteration writes several tokens, or reads fewer bytes than the weights and keys are counted with.
_OTHERWISE: Mapping[str, str] = {
    f"{_ROLLOUT}.multi_turn.enable": "tools' answers are among the response lengths",
    f"{_ROLLOUT}.mtp.enable": "several tokens are written in one iteration",
    f"{_ROLLOUT}.mtp.enable_rollout": "several tokens are written in one iteration",
    f"{_ROLLOUT}.quantization": "the rollout's weights are quantised",
    f"{_ROLLOUT}.engine_kwargs.vllm.quantization": "the rollout's weights are quantised",
    f"{_ROLLOUT}.engine_kwargs.sglang.quantization": "the rollout's weights are quantised",
    f"{_ROLLOUT}.engine_kwargs.vllm.kv_cache_dtype": "keys and values have a number format of their own",
    f"{_ROLLOUT}.engine_kwargs.sglang.kv_cache_dtype": "keys and values have a number format of their own",
    f"{_ROLLOUT}.engine_kwargs.vllm.speculative_config": "several tokens are written in one iteration",
    f"{_ROLLOUT}.engine_kwargs.sglang.speculative_algorithm": "several tokens are written in one iteration",
}
_OFF: tuple[Any, ...] = (None, False, "", "null", "None", "False", "false", "auto", {}, [])


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run generated on; None is unknown.

    `gpu` is our name where it is a known GPU, else as the run reports it; `gpus` are the run's, over all nodes;
    `completions` those of a step, `group` those of a prompt; `concurrency` the most sequences that one replica decodes
    at once. `unknown` says in words what is missing for a decode floor, `assumed` what was taken for granted,
    `contradicted` where what is declared of an imported run is not what the run itself says.
    """

    gpu: str | None
    gpus: int | None
    nodes: int | None
    tensor_parallel: int | None
    replicas: int | None
    model: str | None
    facts: ModelFacts | None
    number_bytes: int | None
    completions: int | None
    group: int | None
    concurrency: int | None
    max_response_length: int | None
    shortest_prompt: int | None
    unknown: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    contradicted: tuple[str, ...] = ()


def setup_of(run: Run) -> Setup:
    """A run's setup: what its import declares, then what the run resolved, its settings, its workload.

    Of the GPU's name the driver's word comes first.
    """
    spec, settings = run.spec, _settings(run)
    declared = _mapping(spec.get("import"))
    workload, inputs = _mapping(spec.get("workload")), run.inputs or {}
    verl = spec.get("trainer") == "verl"
    reported = _reported_gpus(run)
    gpu = _gpu(declared, reported, workload)
    nodes = _int(declared.get("nodes")) or _int(settings.get("trainer.nnodes")) or _int(workload.get("nodes"))
    per_node = _int(declared.get("gpus_per_node")) or _int(settings.get("trainer.n_gpus_per_node"))
    per_node = per_node or _int(workload.get("gpus_per_node"))
    gpus = nodes * per_node if nodes and per_node else None
    group = _int(settings.get(f"{_ROLLOUT}.n" if verl else "num_generations")) or _int(workload.get("num_generations"))
    parallel = _int(declared.get("tensor_parallel")) or _tensor_parallel(run, settings)
    model, facts = _model(run, declared, settings, workload)
    number_bytes, assumed = _number_bytes(run, settings, workload)
    unknown = [
        *_gpu_unknown(gpu),
        *([] if gpus else ["how many GPUs it ran on"]),
        *_parallel_unknown(parallel, gpus, settings),
        *_model_unknown(model, facts),
        *([] if number_bytes else ["the number format in which the engine holds the model"]),
        *_work_unknown(run, settings),
    ]
    if "import" not in spec and not reported and not per_node:
        unknown = ["a GPU: it trained on the CPU"]
    elif not unknown and facts and number_bytes and parallel:
        held = (facts.decode_parameters or 0) * number_bytes / parallel
        if held < _LEAST_WEIGHTS:
            unknown.append(f"what the chip's caches hold: only {held / 1e6:.0f} MB of weights lie on a GPU")
    prompts = _mapping(inputs.get("prompt_tokens"))
    return Setup(
        gpu=gpu,
        gpus=gpus,
        nodes=nodes,
        tensor_parallel=parallel,
        replicas=gpus // parallel if gpus and parallel and gpus % parallel == 0 else None,
        model=model,
        facts=facts,
        number_bytes=number_bytes,
        completions=_completions(declared, settings, workload, group, verl),
        group=group,
        concurrency=_concurrency(run, settings),
        max_response_length=_int(declared.get("max_response_length")) or _int(workload.get("max_response_length")),
        shortest_prompt=_int(prompts.get("min")),
        unknown=tuple(unknown),
        assumed=assumed,
        contradicted=_contradicted(declared, reported, settings, verl),
    )


def _contradicted(
    declared: Mapping[str, Any], reported: Sequence[str], settings: Mapping[str, Any], verl: bool
) -> tuple[str, ...]:
    """Where what the experiment declares of an imported run is not what the run's own source says."""
    own: dict[str, Any] = {"gpu": _gpu({}, reported, {})}
    if verl:
        own |= {
            "nodes": _int(settings.get("trainer.nnodes")),
            "gpus_per_node": _int(settings.get("trainer.n_gpus_per_node")),
            "tensor_parallel": _int(settings.get(f"{_ROLLOUT}.tensor_model_parallel_size")),
            "max_response_length": _int(settings.get("data.max_response_length")),
        }
    said = {name: declared.get(name) for name in own}
    said["gpu"] = _gpu(declared, (), {})
    return tuple(
        f"import.{name} is {said[name]}, the run itself says {value}"
        for name, value in own.items()
        if value is not None and said[name] is not None and said[name] != value
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _int(value: Any) -> int | None:
    """A whole number from 1, also from a setting's text; None for anything else."""
    try:
        number = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else 0
    except ValueError:
        return None
    return number if number > 0 else None


def _settings(run: Run) -> dict[str, Any]:
    """The trainer's settings by dotted key: as the run resolved them, else as it was asked for them."""
    spec, resolved = run.spec, _mapping(run.done.get("resolved"))
    asked = _mapping(spec.get("trainer_args"))
    # A trained run keeps the trainer's settings apart from the engine's; an imported one has its whole config.
    held = resolved if "import" in spec else _mapping(resolved.get("trainer"))
    return {
        **flat(_mapping(spec.get("options"))),
        **flat({key: value for key, value in asked.items() if key != "overrides"}),
        **overrides_by_key(asked),
        **flat(held),
    }


def _reported_gpus(run: Run) -> list[str]:
    """The GPUs of the node as its driver names them."""
    raw = _mapping(run.done.get("hardware")).get("gpus")
    named = [one.get("name") if isinstance(one, Mapping) else one for one in raw] if isinstance(raw, list) else []
    return [name for name in named if isinstance(name, str) and name]


def _gpu(declared: Mapping[str, Any], reported: Sequence[str], workload: Mapping[str, Any]) -> str | None:
    """The driver's word, the name that is declared, or the one that the experiment is meant for."""
    seen = sorted({known_name(name) or name for name in reported})
    name = " and ".join(seen) or declared.get("gpu") or workload.get("gpu")
    return (known_name(str(name)) or str(name)) if name else None


def _gpu_unknown(gpu: str | None) -> list[str]:
    if gpu is None:
        return ["which GPU it ran on"]
    return [] if gpu_of(gpu) else [f"the data sheet of the GPU {gpu!r} (known: {', '.join(KNOWN_GPUS)})"]


def _tensor_parallel(run: Run, settings: Mapping[str, Any]) -> int | None:
    """GPUs that share one copy of the model in the engine."""
    if run.spec.get("trainer") == "verl":
        return _int(settings.get(f"{_ROLLOUT}.tensor_model_parallel_size"))
    if run.spec.get("engine") == "transformers":
        return 1
    # The engine's own word; TRL's setting is of the colocated engine only.
    engine = _mapping(_mapping(run.done.get("resolved")).get("engine"))
    if settings.get("vllm_mode") == "server":
        return None
    return _int(engine.get("tensor_parallel_size")) or _int(settings.get("vllm_tensor_parallel_size"))


def _parallel_unknown(parallel: int | None, gpus: int | None, settings: Mapping[str, Any]) -> list[str]:
    if settings.get("vllm_mode") == "server":
        return ["the GPUs of the engine's server, which are not the trainer's"]
    if parallel is None:
        return ["the engine's tensor parallel size"]
    stages = _int(settings.get(f"{_ROLLOUT}.pipeline_model_parallel_size")) or 1
    if stages > 1:
        return [f"a roofline for an engine in {stages} pipeline stages"]
    if gpus and gpus % parallel:
        return [f"how engines of {parallel} GPUs lie on {gpus}"]
    return []


def _model(
    run: Run, declared: Mapping[str, Any], settings: Mapping[str, Any], workload: Mapping[str, Any]
) -> tuple[str | None, ModelFacts | None]:
    """The model's name, and its sizes from the folder that was trained, or by that name."""
    prepared = _mapping((run.inputs or {}).get("model"))
    name = (
        declared.get("model")
        or prepared.get("source")
        or _mapping(workload.get("model")).get("source")
        or settings.get("actor_rollout_ref.model.path")
        or settings.get("model_name_or_path")
        or settings.get("_name_or_path")
    )
    if not isinstance(name, str):
        return None, None
    folder = _prepared_folder(run, prepared.get("path"))
    return name, model_facts(name if folder is None else str(folder))


def _prepared_folder(run: Run, path: object) -> Path | None:
    """The folder whose model was trained, where it is still there: beside inputs.json, or where that says."""
    if not isinstance(path, str) or not path:
        return None
    folder = Path(path) if run.inputs_folder is None else run.inputs_folder.absolute() / path
    return folder if folder.is_absolute() and (folder / "config.json").is_file() else None


def _model_unknown(model: str | None, facts: ModelFacts | None) -> list[str]:
    if model is None:
        return ["which model it trained"]
    if facts is None:
        return [f"the sizes of the model {model}"]
    if facts.decode_parameters is None:
        return [f"what a {facts.architecture} reads for a token (counted: {', '.join(COUNTED)})"]
    return [] if facts.full_attention else [f"a roofline for {model}, whose layers attend through a sliding window"]


def _number_bytes(
    run: Run, settings: Mapping[str, Any], workload: Mapping[str, Any]
) -> tuple[int | None, tuple[str, ...]]:
    """Bytes of a weight and of a cached number in the engine, and what was taken for granted for that."""
    engine = _mapping(_mapping(run.done.get("resolved")).get("engine"))
    if run.spec.get("trainer") == "verl":
        said = settings.get(f"{_ROLLOUT}.dtype")
    else:
        said = engine.get("dtype") or workload.get("dtype")
    if said in (None, "", "auto"):
        # vLLM's and SGLang's "auto", and verl's default: float16 or bfloat16, whatever the checkpoint has.
        if run.spec.get("engine") not in ("vllm", "sglang"):
            return None, ()
        return 2, ("two bytes for a weight, the engine's default: no file of the run names the number format",)
    return _BYTES.get(str(said)), ()


def _work_unknown(run: Run, settings: Mapping[str, Any]) -> list[str]:
    """Ways of generating for which the response lengths do not give the iterations, or these not the bytes."""
    if run.tree.overlap:
        return [f"which seconds are generation's: {run.tree.overlap}"]
    if run.tree.mode == "colocate_async":
        return ["which tokens a step's seconds went to: responses may have begun in an earlier step"]
    words = tuple(_OTHERWISE)
    on = [key for key, value in settings.items() if key.startswith(words) and value not in _OFF]
    return [
        f"a roofline with {word}: {why}"
        for word, why in _OTHERWISE.items()
        if any(key == word or key.startswith(f"{word}.") for key in on)
    ]


def _completions(
    declared: Mapping[str, Any], settings: Mapping[str, Any], workload: Mapping[str, Any], group: int | None, verl: bool
) -> int | None:
    prompts = _int(settings.get("data.train_batch_size"))
    told = prompts * group if prompts and group and verl else None
    return _int(declared.get("batch_size")) or told or _int(workload.get("batch_size"))


def _concurrency(run: Run, settings: Mapping[str, Any]) -> int | None:
    """The cap on sequences at once, where it is certain that the engine was given it.

    verl 0.4.1 passes no limit but vLLM's own arguments; 0.9.1 passes `max_num_seqs`, which the engine's own wins over.
    """
    engine = str(run.spec.get("engine"))
    if run.spec.get("trainer") != "verl":
        return _int(_mapping(_mapping(run.done.get("resolved")).get("engine")).get("max_num_seqs"))
    own = {"vllm": "max_num_seqs", "sglang": "max_running_requests"}.get(engine)
    given = _int(settings.get(f"{_ROLLOUT}.engine_kwargs.{engine}.{own}"))
    if run.tree.series == "0.4.1":
        return given if engine == "vllm" else None
    return given or (_int(settings.get(f"{_ROLLOUT}.max_num_seqs")) if run.tree.series == "0.9.1" else None)
