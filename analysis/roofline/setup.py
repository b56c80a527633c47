"""Finds what a run generated on: its GPUs, how the engine splits the model over them, and its model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.runs import Run
from common.dotted import as_mapping, flatten, overrides_by_key, positive_int
from common.gpus import gpu_of, known_name
from common.model_facts import ModelFacts, contradicts_declared, hub_id, is_hub_id, model_facts
from engines import engine_named
from trainers.protocol import OFF
from trainers.registry import trainer_named, trainers

_BYTES = dict.fromkeys(("float32", "fp32", "float"), 4)
_BYTES |= dict.fromkeys(("bfloat16", "bf16", "float16", "fp16", "half"), 2)
# Fewer bytes of weights fit in the chip's caches (50 MB on an H100), which are faster than its memory.
_LEAST_WEIGHTS = 0.5e9
_MACHINES = ("nodes", "gpus_per_node")
_COUNTS = (*_MACHINES, "tensor_parallel", "batch_size", "max_response_length")
_PRODUCT = ("prompts", "num_generations")


@dataclass(frozen=True, slots=True)
class DecodeSetup:
    """What a run generated on; None is unknown."""

    gpu: str | None
    """The name of a known GPU, otherwise as the run reports it."""
    gpus: int | None
    """Those of all nodes, of separate engines and of other pools (a reward model's)."""
    nodes: int | None
    tensor_parallel: int | None
    replicas: int | None
    model: str | None
    facts: ModelFacts | None
    number_bytes: int | None
    """Of a weight and of a cached number."""
    concurrency: int | None
    """The most sequences that one replica decodes at once."""
    group: int | None
    """The responses of a prompt."""
    max_response_length: int | None
    separate_engines: bool
    """Whether engines have GPUs on which nothing trains."""
    contradicted: tuple[str, ...]
    """Where an import declares something else than the run says."""
    unknown: tuple[str, ...] = ()
    """Why there is no decode floor."""


def setup_of(run: Run) -> DecodeSetup:
    """A run's setup. Its own files count first, then its import, then what it was asked for, then its workload."""
    reader = _SetupReader(run)
    setup = reader.setup()
    return replace(setup, unknown=tuple(reader.unknown(setup)))


class _SetupReader:
    """Reads the setup of one run from its spec and its done.json."""

    def __init__(self, run: Run) -> None:
        spec, resolved = run.spec, as_mapping(run.done.get("resolved") or run.done.get("command"))
        self.run, self.imported = run, "import" in spec
        self.declared, self.workload = as_mapping(spec.get("import")), as_mapping(spec.get("workload"))
        self.trainer, self.engine = trainer_named(str(spec.get("trainer"))), engine_named(str(spec.get("engine")))
        # A trained run stores the trainer's and the engine's settings separately; an imported one all in one.
        self.engine_settings = as_mapping(resolved.get("engine"))
        own = flatten(resolved if self.imported else as_mapping(resolved.get("trainer")))
        asked = as_mapping(spec.get("trainer_args"))
        self.settings: dict[str, Any] = {
            **flatten(as_mapping(spec.get("options"))),
            **flatten({key: value for key, value in asked.items() if key != "overrides"}),
            **overrides_by_key(asked),
            **own,
        }
        self.engine_prefix = self.trainer.engine_prefix(self.engine.name, run.tree.series)
        self.served = self.trainer.is_served(self.settings, self.engine)
        self.separate = bool(run.tree.overlap) or self.served
        self.beside = self.trainer.gpus_beside(self.settings, run.tree, self.separate)
        self.stages = positive_int(self.trainer.lookup(self.settings, "pipeline_parallel")) or 1
        gpus = run.hardware.get("gpus")
        names = [gpu.get("name") if isinstance(gpu, Mapping) else gpu for gpu in gpus] if isinstance(gpus, list) else []
        self.reported = [known_name(name) or name for name in names if isinstance(name, str) and name]
        self.reported_gpu = " and ".join(sorted({*self.reported}))
        stated = [of.get("gpu") for of in (self.declared, self.workload)]
        self.declared_gpu, self.meant_gpu = (known_name(str(name)) or str(name) if name else None for name in stated)
        asked_for = self._stated(self.settings)
        # An imported run says what its source contains; the settings it was asked for are the experiment's.
        self.own = self._stated(own) if self.imported else asked_for
        if self.imported and self.reported and "gpus_per_node" not in self.trainer.keys:
            # It may have used fewer GPUs than its node has, where the import says so, but not more.
            used = positive_int(self.declared.get("gpus_per_node")) or len(self.reported)
            self.own["gpus_per_node"] = min(used, len(self.reported))
        self.said = (self.own, self.declared, asked_for, self.workload)

    def _stated(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What these settings say, under the names of `import`."""
        number = {word: positive_int(self.trainer.lookup(settings, word)) for word in (*_COUNTS, *_PRODUCT)}
        own = positive_int(self.engine_settings.get("tensor_parallel_size"))
        # The setting is for a colocated engine only.
        alone = self.served or self.engine.in_trainer
        number["tensor_parallel"] = None if alone else own or number["tensor_parallel"]
        # An overlapping loop trains whatever is ready.
        number["batch_size"] = None if self.run.tree.overlap else _product(number, _PRODUCT)
        # A trained run's model is a folder here: the workload names it.
        model = self.trainer.lookup(settings, "model") if self.imported else None
        return number | {"model": model if isinstance(model, str) else None}

    def fact(self, word: str) -> int | None:
        """The first of the sources that has this number."""
        return next((number for of in self.said if (number := positive_int(of.get(word)))), None)

    def setup(self) -> DecodeSetup:
        """All but `unknown`."""
        parallel = 1 if self.engine.in_trainer else self.fact("tensor_parallel")
        nodes, gpus, contradicted = self._machines()
        # Separate engines have GPUs of their own, which no setting shares out.
        shared = gpus - (self.beside or 0) if gpus and self.stages == 1 and not self.separate else None
        model, facts = self._model()
        dtype = self.engine_settings.get("dtype") or self.workload.get("dtype")
        if "dtype" in self.trainer.keys:
            dtype = self.trainer.lookup(self.settings, "dtype")
        limit = self.engine.max_sequences_option
        at_once = self.engine_settings.get(limit) or self.settings.get(self.engine_prefix + limit)
        return DecodeSetup(
            gpu=self.reported_gpu or self.declared_gpu or self.meant_gpu,
            gpus=gpus,
            nodes=nodes,
            tensor_parallel=parallel,
            replicas=shared // parallel if shared and parallel and shared % parallel == 0 else None,
            model=model,
            facts=facts,
            number_bytes=self.engine.number_bytes if dtype in (None, "", "auto") else _BYTES.get(str(dtype)),
            concurrency=positive_int(at_once),
            group=self.fact("num_generations"),
            max_response_length=self.fact("max_response_length"),
            separate_engines=self.separate,
            contradicted=(*self._contradicted(), *contradicted),
        )

    def _machines(self) -> tuple[int | None, int | None, list[str]]:
        """The nodes and the GPUs of the whole run, as the import's are, and an import's contradiction.

        With separate engines or another pool verl's own settings are the trainer's, and no setting says which nodes
        the others share.
        """
        if not self.separate and not self.beside:
            both = {word: self.fact(word) for word in _MACHINES}
            return both["nodes"], _product(both, _MACHINES), []
        nodes = positive_int(self.declared.get("nodes")) if self.imported else self.fact("nodes")
        declared = _product(self.declared, _MACHINES)
        of_trainer = _product(self.own if self.imported else {word: self.fact(word) for word in _MACHINES}, _MACHINES)
        total = of_trainer + self.beside if of_trainer and self.beside is not None else None
        if not (of_trainer and declared) or (declared == total if total else declared > of_trainer):
            return nodes, total or declared, []
        others = "its engines'" if self.separate else "its other pools'"
        of_run = f"{total}, {others} with them" if total else f"{of_trainer} without {others}"
        return nodes, total, [f"import.nodes times import.gpus_per_node is {declared}, the run itself says {of_run}"]

    def _contradicted(self) -> Iterator[str]:
        """Where an import declares another number, GPU or model than the run itself says."""
        declared: dict[str, Any] = {word: positive_int(self.declared.get(word)) for word in _COUNTS}
        declared |= {"gpu": self.declared_gpu, "model": self.declared.get("model")}
        for word, said in declared.items():
            own = self.reported_gpu if word == "gpu" else self.own[word]
            if not (said and own) or (word in _MACHINES and (self.separate or self.beside)):
                continue
            if contradicts_declared(str(own), str(said)) if word == "model" else said != own:
                yield f"import.{word} is {said}, the run itself says {own}"

    def _model(self) -> tuple[str | None, ModelFacts | None]:
        """The model's name, and its sizes from the trained folder or by that name."""
        own, declared = self.own["model"], self.declared.get("model")
        prepared = as_mapping((self.run.inputs or {}).get("model"))
        if own and declared and not contradicts_declared(own, str(declared)):
            # A folder or an unknown name does not identify the model: the declared one counts.
            own = own if is_hub_id(own) and model_facts(own) is not None else declared
        names = [own, declared, prepared.get("source"), as_mapping(self.workload.get("model")).get("source")]
        names += [self.settings.get(key) for trainer in trainers() for key in trainer.keys.get("model", ())]
        name = next((hub_id(name) for name in names if isinstance(name, str) and name), None)
        # Where inputs.json says, or beside it; the folder may be gone.
        folder = (self.run.inputs_folder or Path()).absolute() / str(prepared.get("path"))
        source = str(folder) if prepared.get("path") and (folder / "config.json").is_file() else name
        return name, model_facts(source) if name and source else None

    def unknown(self, setup: DecodeSetup) -> Iterator[str]:
        """Why there is no decode floor: each missing fact, and what the formula does not model."""
        if not (self.imported or self.reported or self.fact("gpus_per_node")):
            yield "a GPU: it trained on the CPU"
            return
        parallel, facts = setup.tensor_parallel, setup.facts
        read = facts.decode_parameters if facts and facts.full_attention else None
        weights = (read or _LEAST_WEIGHTS) * (setup.number_bytes or 1) / (parallel or 1)
        split = f"{setup.gpus or 'unknown'} GPUs, tensor parallel size {parallel or 'unknown'}, {self.stages} stages"
        gpu, model = setup.gpu or "which is unknown", setup.model or "which is unknown"
        hint = " (set import.{})" if self.imported else ""
        needed = {
            f"the data sheet of its GPU, {gpu}{hint.format('gpu')}": gpu_of(setup.gpu),
            f"how its engines share GPUs: {split}{hint.format('tensor_parallel')}": setup.replicas or self.separate,
            "which GPUs its engines have of their own": not self.separate,
            f"the sizes of a dense model with full attention, {model}{hint.format('model')}": read,
            "the number format in which the engine holds the model": setup.number_bytes,
            f"what caches hold of {weights / 1e6:.0f} MB of weights a GPU": weights >= _LEAST_WEIGHTS,
        }
        yield from (text for text, known in needed.items() if not known)
        yield from self.trainer.undecoded(self.settings, self.run.tree)
        known = self.engine.unmodelled_options.items() if self.engine_prefix else ()
        of_engine = {self.engine_prefix + word: why for word, why in known}
        on = [f"{key}." for key, value in self.settings.items() if value not in OFF]
        for option, why in of_engine.items():
            if any(key.startswith(f"{option}.") for key in on):
                yield f"the floor with {option}: {why}"


def _product(numbers: Mapping[str, Any], words: tuple[str, str]) -> int | None:
    one, other = (positive_int(numbers.get(word)) for word in words)
    return one * other if one and other else None
