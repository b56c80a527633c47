"""Finds what a run generated on: its GPUs, how they were split, its model. What no file of it says is unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.runs import Run
from common.dotted import as_mapping, flatten, overrides_by_key, positive_int
from common.gpus import KNOWN_GPUS, gpu_of, known_name, measured_cpu
from common.model_facts import COUNTED, ModelFacts, contradicts_declared, hub_id, is_hub_id, model_facts
from engines import Engine, engine_named
from trainers.registry import Trainer, trainer_named, trainers

_BYTES: Mapping[str, int] = {
    **{"float32": 4, "fp32": 4, "float": 4},
    **{"bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2, "half": 2},
}
# Below this much of the weights lies in the chip's caches (50 MB on an H100), which are faster than its memory.
_LEAST_WEIGHTS = 0.5e9
_OFF: tuple[Any, ...] = (None, False, "", "null", "None", "False", "false", "auto", {}, [])


@dataclass(frozen=True, slots=True)
class DecodeSetup:
    """What a run generated on; None is unknown.

    `gpu` is our name where it is a known GPU, else as the run reports it; `gpus` are the run's, over all nodes, those
    of its engines with them, and `apart` whether engines have GPUs on which nothing trains; `completions` those of a
    step, `group` those of a prompt; `concurrency` the most sequences that one replica decodes at once. `unknown` says
    in words what is missing for a decode floor, `assumed` what was taken for granted, `contradicted` where what is
    declared of an imported run is not what the run itself says.
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
    apart: bool = False


def setup_of(run: Run) -> DecodeSetup:
    """A run's setup: what it says itself, then what its import declares, then its settings and its workload.

    A trained run ran what its workload names. Where an import declares what the run itself denies, the run counts.
    """
    spec, settings = run.spec, _settings(run)
    declared, workload = as_mapping(spec.get("import")), as_mapping(spec.get("workload"))
    trainer = _trainer(run)
    reported = _reported_gpus(run)
    gpu = _gpu(declared, reported, workload)
    apart = _engines_apart(run, settings)
    # An imported run says what its source holds: what it was asked for beside that is the experiment's word.
    own = _own_facts(run, flatten(as_mapping(run.done.get("resolved"))) if "import" in spec else settings, reported)
    nodes, per_node, gpus, denied = _machines(run, own, settings, apart)
    group = positive_int(trainer.lookup(settings, "num_generations")) or positive_int(workload.get("num_generations"))
    parallel = own.get("tensor_parallel") or positive_int(declared.get("tensor_parallel"))
    parallel = parallel or _tensor_parallel(run, settings)
    model, facts, other = _model(run, own.get("model"), settings)
    number_bytes, assumed = _number_bytes(run, settings, workload)
    left = (gpus or 0) - int(as_mapping(spec.get("scorer")).get("gpus") or 0)
    setup = DecodeSetup(
        gpu=gpu,
        gpus=gpus,
        nodes=nodes,
        tensor_parallel=parallel,
        replicas=left // parallel if left and parallel and left % parallel == 0 and not apart else None,
        model=model,
        facts=facts,
        number_bytes=number_bytes,
        completions=_firstpositive(
            own.get("batch_size"),
            declared.get("batch_size"),
            _product(positive_int(trainer.lookup(settings, "prompts")), group),
            workload.get("batch_size"),
        ),
        group=group,
        concurrency=positive_int(trainer.sequence_limit(run.tree, _engine(run), settings, _held_by_engine(run))),
        max_response_length=_firstpositive(*(one.get("max_response_length") for one in (own, declared, workload))),
        shortest_prompt=positive_int(as_mapping((run.inputs or {}).get("prompt_tokens")).get("min")),
        assumed=assumed,
        contradicted=(*_contradicted(own, declared, reported), *denied, *other),
        apart=apart,
    )
    if "import" not in spec and not reported and not per_node:
        if not run.memory_gb_s:
            return replace(setup, unknown=("a GPU: it trained on the CPU",))
        setup = replace(setup, gpu=measured_cpu(run.memory_gb_s), gpus=1, tensor_parallel=1, replicas=1)
    return replace(setup, unknown=tuple(_unknown(run, settings, setup)))


def _unknown(run: Run, settings: Mapping[str, Any], setup: DecodeSetup) -> list[str]:
    """What is missing for a decode floor, in words."""
    server, parallel, gpus = _on_a_server(run, settings), setup.tensor_parallel, setup.gpus
    told_by = {
        key: f" (import.{key} tells it)" if "import" in run.spec else "" for key in ("gpu", "model", "tensor_parallel")
    }
    stages = positive_int(_trainer(run).lookup(settings, "pipeline_parallel")) or 1
    divided = None if setup.apart or setup.replicas else gpus
    where = "its engines have of their own" if setup.apart else "it ran on"
    unknown = [
        *_gpu_unknown(setup.gpu, told_by["gpu"]),
        *([] if gpus or server else [f"how many GPUs {where}"]),
        *_parallel_unknown(parallel, divided, stages, server, told_by["tensor_parallel"]),
        *_model_unknown(setup.model, setup.facts, told_by["model"]),
        *([] if setup.number_bytes else ["the number format in which the engine holds the model"]),
        *_work_unknown(run, settings),
    ]
    if not unknown and setup.facts and setup.number_bytes and parallel:
        held = (setup.facts.decode_parameters or 0) * setup.number_bytes / parallel
        if held < _LEAST_WEIGHTS:
            return [f"what the chip's caches hold: only {held / 1e6:.0f} MB of weights lie on a GPU"]
    return unknown


def _trainer(run: Run) -> Trainer:
    return trainer_named(str(run.spec.get("trainer")))


def _engine(run: Run) -> Engine:
    return engine_named(str(run.spec.get("engine")))


def _own_facts(run: Run, held: Mapping[str, Any], reported: Sequence[str]) -> dict[str, Any]:
    """What a run itself says, under the words of `import`; without those of which it says nothing."""
    trainer = _trainer(run)
    found: dict[str, Any] = {
        word: positive_int(trainer.lookup(held, word)) for word in ("nodes", "gpus_per_node", "max_response_length")
    }
    found["tensor_parallel"] = None if _engine(run).in_trainer else _tensor_parallel(run, held)
    found["model"] = trainer.lookup(held, "model")
    if not run.tree.overlap:  # such a loop takes for a step what is ready
        prompts, group = (positive_int(trainer.lookup(held, word)) for word in ("prompts", "num_generations"))
        found["batch_size"] = _product(prompts, group)
    if "gpus_per_node" not in trainer.keys:
        # Its node's GPUs: of these it may have used a part, if that is said, and no more.
        said = positive_int(as_mapping(run.spec.get("import")).get("gpus_per_node"))
        if "import" in run.spec and reported and not (said and said <= len(reported)):
            found["gpus_per_node"] = len(reported)
    return {name: value for name, value in found.items() if value}


def _machines(
    run: Run, own: Mapping[str, Any], settings: Mapping[str, Any], apart: bool
) -> tuple[int | None, int | None, int | None, list[str]]:
    """A run's nodes, the GPUs of a node and of all, and where the import's are not those of the run itself.

    The import's are of the whole run. With engines apart verl's own are the trainer's, and which nodes the engines
    share with it no setting tells.
    """
    declared, workload = as_mapping(run.spec.get("import")), as_mapping(run.spec.get("workload"))
    names, trainer = ("nodes", "gpus_per_node"), _trainer(run)
    asked = {name: _firstpositive(trainer.lookup(settings, name), workload.get(name)) for name in names}
    said = {name: positive_int(declared.get(name)) for name in names}
    if not apart:
        found = {name: own.get(name) or said[name] or asked[name] for name in names}
        wrong = [
            f"import.{name} is {said[name]}, the run itself says {own[name]}"
            for name in names
            if own.get(name) and said[name] and said[name] != own[name]
        ]
        return found["nodes"], found["gpus_per_node"], _product(found["nodes"], found["gpus_per_node"]), wrong
    engines = trainer.engine_gpus(run.tree.mode, settings)
    whole = _product(said["nodes"], said["gpus_per_node"])
    imported = "import" in run.spec
    trains = _product(*((own if imported else asked).get(name) for name in names))
    total = trains + engines if trains and engines is not None else None
    wrong = []
    if trains and whole and (whole != total if total else whole <= trains):
        told = f"{total}, its engines' with them" if total else f"{trains} without its engines'"
        wrong = [f"import.nodes times import.gpus_per_node is {whole}, the run itself says {told}"]
    nodes = said["nodes"] if imported else asked["nodes"]
    return nodes, asked["gpus_per_node"], total or (None if wrong else whole), wrong


def _on_a_server(run: Run, settings: Mapping[str, Any]) -> bool:
    """Whether the engine is a server of its own; without an engine the setting means nothing."""
    key, value = _trainer(run).server
    return bool(key) and not _engine(run).in_trainer and settings.get(key) == value


def _engines_apart(run: Run, settings: Mapping[str, Any]) -> bool:
    """Whether the engines have GPUs on which nothing trains: loops that overlap, and a server."""
    return bool(run.tree.overlap) or _on_a_server(run, settings)


def _held_by_engine(run: Run) -> Mapping[str, Any]:
    """The settings that a trained run's engine finally held."""
    return as_mapping(as_mapping(run.done.get("resolved")).get("engine"))


def _contradicted(own: Mapping[str, Any], declared: Mapping[str, Any], reported: Sequence[str]) -> tuple[str, ...]:
    """Where what an import declares of GPU, split or work is not what the run itself says."""
    names = ("tensor_parallel", "batch_size", "max_response_length")
    said = {"gpu": _gpu(declared, (), {})} | {name: positive_int(declared.get(name)) for name in names}
    truth = {"gpu": _gpu({}, reported, {})} | {name: own.get(name) for name in names}
    return tuple(
        f"import.{name} is {said[name]}, the run itself says {value}"
        for name, value in truth.items()
        if value is not None and said[name] is not None and said[name] != value
    )


def _firstpositive(*values: Any) -> int | None:
    return next((number for value in values if (number := positive_int(value))), None)


def _product(one: int | None, other: int | None) -> int | None:
    return one * other if one and other else None


def _settings(run: Run) -> dict[str, Any]:
    """The trainer's settings by dotted key: as the run resolved them, else as it was asked for them."""
    spec, resolved = run.spec, as_mapping(run.done.get("resolved"))
    asked = as_mapping(spec.get("trainer_args"))
    # A trained run keeps the trainer's settings apart from the engine's; an imported one has its whole config.
    held = resolved if "import" in spec else as_mapping(resolved.get("trainer"))
    return {
        **flatten(as_mapping(spec.get("options"))),
        **flatten({key: value for key, value in asked.items() if key != "overrides"}),
        **overrides_by_key(asked),
        **flatten(held),
    }


def _reported_gpus(run: Run) -> list[str]:
    """The GPUs of the node as its driver names them."""
    raw = run.hardware.get("gpus")
    named = [one.get("name") if isinstance(one, Mapping) else one for one in raw] if isinstance(raw, list) else []
    return [name for name in named if isinstance(name, str) and name]


def _gpu(declared: Mapping[str, Any], reported: Sequence[str], workload: Mapping[str, Any]) -> str | None:
    """The driver's word, the name that is declared, or the one that the experiment is meant for."""
    seen = sorted({known_name(name) or name for name in reported})
    name = " and ".join(seen) or declared.get("gpu") or workload.get("gpu")
    return (known_name(str(name)) or str(name)) if name else None


def _gpu_unknown(gpu: str | None, told_by: str) -> list[str]:
    if gpu is None:
        return [f"which GPU it ran on{told_by}"]
    return [] if gpu_of(gpu) else [f"the data sheet of the GPU {gpu!r} (known: {', '.join(KNOWN_GPUS)})"]


def _tensor_parallel(run: Run, settings: Mapping[str, Any]) -> int | None:
    """GPUs that share one copy of the model in the engine: its own word, else the trainer's setting."""
    if _engine(run).in_trainer:
        return 1
    if _on_a_server(run, settings):  # the setting is of the colocated engine only
        return None
    said = _trainer(run).lookup(settings, "tensor_parallel")
    return positive_int(_held_by_engine(run).get("tensor_parallel_size")) or positive_int(said)


def _parallel_unknown(parallel: int | None, gpus: int | None, stages: int, server: bool, told_by: str) -> list[str]:
    if server:
        return ["the GPUs of the engine's server, which are not the trainer's"]
    if parallel is None:
        return [f"the engine's tensor parallel size{told_by}"]
    if stages > 1:
        return [f"a roofline for an engine in {stages} pipeline stages"]
    if gpus and gpus % parallel:
        return [f"how engines of {parallel} GPUs lie on {gpus}"]
    return []


def _model(run: Run, own: object, settings: Mapping[str, Any]) -> tuple[str | None, ModelFacts | None, list[str]]:
    """The model's name, its sizes from the folder that was trained or by that name, and where the import denies it."""
    prepared = as_mapping((run.inputs or {}).get("model"))
    names = [prepared.get("source"), as_mapping(as_mapping(run.spec.get("workload")).get("model")).get("source")]
    wrong = []
    if "import" in run.spec:
        declared = as_mapping(run.spec["import"]).get("model")
        names = [own, declared, *names]
        if isinstance(own, str) and isinstance(declared, str):
            if contradicts_declared(own, declared):
                wrong = [f"import.model is {declared}, the run itself says {own}"]
            elif not is_hub_id(own) or model_facts(own) is None:
                # A folder tells little, as does a name that nobody here knows: what it is said to be counts.
                names = [declared]
    names += [settings.get(key) for one in trainers() for key in one.keys.get("model", ())]
    name = next((hub_id(name) for name in names if isinstance(name, str) and name), None)
    if name is None:
        return None, None, wrong
    folder = _prepared_folder(run, prepared.get("path"))
    return name, model_facts(name if folder is None else str(folder)), wrong


def _prepared_folder(run: Run, path: object) -> Path | None:
    """The folder whose model was trained, where it is still there: beside inputs.json, or where that says."""
    if not isinstance(path, str) or not path:
        return None
    folder = Path(path) if run.inputs_folder is None else run.inputs_folder.absolute() / path
    return folder if folder.is_absolute() and (folder / "config.json").is_file() else None


def _model_unknown(model: str | None, facts: ModelFacts | None, told_by: str) -> list[str]:
    if model is None:
        return [f"which model it trained{told_by}"]
    if facts is None:
        return [f"the sizes of the model {model}"]
    if facts.decode_parameters is None:
        return [f"what a {facts.architecture} reads for a token (counted: {', '.join(COUNTED)})"]
    return [] if facts.full_attention else [f"a roofline for {model}, whose layers attend through a sliding window"]


def _number_bytes(
    run: Run, settings: Mapping[str, Any], workload: Mapping[str, Any]
) -> tuple[int | None, tuple[str, ...]]:
    """Bytes of a weight and of a cached number in the engine, and what was taken for granted for that."""
    trainer = _trainer(run)
    told = _held_by_engine(run).get("dtype") or workload.get("dtype")
    said = trainer.lookup(settings, "dtype") if "dtype" in trainer.keys else told
    if said in (None, "", "auto"):
        default = _engine(run).number_bytes
        word = "two bytes for a weight, the engine's default: no file of the run names the number format"
        return default, (word,) if default else ()
    return _BYTES.get(str(said)), ()


def _work_unknown(run: Run, settings: Mapping[str, Any]) -> list[str]:
    """Ways of generating for which the response lengths do not give the iterations, or these not the bytes."""
    if run.tree.overlap:
        return [f"which seconds are generation's: {run.tree.overlap}"]
    trainer, engine = _trainer(run), _engine(run)
    if run.tree.mode in trainer.carried_over:
        return [trainer.carried_over[run.tree.mode]]
    own = trainer.engine_options.replace("{engine}", engine.name)
    words = {
        **trainer.iterations_hidden_by,
        **({own + word: why for word, why in engine.unmodelled_options.items()} if own else {}),
    }
    on = [key for key, value in settings.items() if key.startswith(tuple(words)) and value not in _OFF]
    return [
        f"a roofline with {word}: {why}"
        for word, why in words.items()
        if any(key == word or key.startswith(f"{word}.") for key in on)
    ]
