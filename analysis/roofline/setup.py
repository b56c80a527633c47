"""Finds what a run generated on: its GPUs, how the engine splits the model over them, and its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.runs import Run
from common.dotted import as_mapping, flatten, overrides_by_key, positive_int
from common.gpus import KNOWN_GPUS, gpu_of, known_name, measured_cpu
from common.model_facts import COUNTED, ModelFacts, contradicts_declared, hub_id, is_hub_id, model_facts
from engines import engine_named
from trainers.registry import trainer_named, trainers

_BYTES: Mapping[str, int] = {
    **{"float32": 4, "fp32": 4, "float": 4},
    **{"bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2, "half": 2},
}
# Fewer bytes of weights fit in the chip's caches (50 MB on an H100), which are faster than its memory.
_LEAST_WEIGHTS = 0.5e9
_OFF: tuple[Any, ...] = (None, False, "", "null", "None", "False", "false", "auto", {}, [])
_NODES = ("nodes", "gpus_per_node")


@dataclass(frozen=True, slots=True)
class DecodeSetup:
    """What a run generated on; None is unknown.

    `gpu` is the name of a known GPU, otherwise as the run reports it. `gpus` counts those of all nodes and of separate
    engines. `completions` are those of a step, `group` those of a prompt; `concurrency` is the most sequences that one
    replica decodes at once. `unknown` describes what is missing for a decode floor, `assumed` what is assumed, and
    `contradicted` where an import declares something else than the run says.
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
    separate_engines: bool = False
    """Whether engines have GPUs on which nothing trains."""


def setup_of(run: Run) -> DecodeSetup:
    """A run's setup. The run's own files count first, then its import, then its settings, then its workload.

    A trained run used what its workload names.
    """
    reader = _SetupReader(run)
    setup = reader.setup()
    if not reader.imported and not reader.reported_gpus and not reader.machines.per_node:
        if not run.memory_gb_s:
            return replace(setup, unknown=("a GPU: it trained on the CPU",))
        setup = replace(setup, gpu=measured_cpu(run.memory_gb_s), gpus=1, tensor_parallel=1, replicas=1)
    return replace(setup, unknown=tuple(reader.unknown(setup)))


@dataclass(frozen=True, slots=True)
class _Machines:
    """A run's nodes, the GPUs of a node and of all, and the contradictions of its import."""

    nodes: int | None
    per_node: int | None
    gpus: int | None
    contradicted: tuple[str, ...] = ()


class _SetupReader:
    """Reads the setup of one run from its spec and its done.json."""

    def __init__(self, run: Run) -> None:
        spec, resolved = run.spec, as_mapping(run.done.get("resolved") or run.done.get("command"))
        self.run, self.imported = run, "import" in spec
        self.declared, self.workload = as_mapping(spec.get("import")), as_mapping(spec.get("workload"))
        self.trainer, self.engine = trainer_named(str(spec.get("trainer"))), engine_named(str(spec.get("engine")))
        # A trained run stores the trainer's and the engine's settings separately; an imported one all in one.
        self.engine_settings = as_mapping(resolved.get("engine"))
        asked = as_mapping(spec.get("trainer_args"))
        # The trainer's settings by dotted key: as the run resolved them, otherwise as requested.
        self.settings: dict[str, Any] = {
            **flatten(as_mapping(spec.get("options"))),
            **flatten({key: value for key, value in asked.items() if key != "overrides"}),
            **overrides_by_key(asked),
            **flatten(resolved if self.imported else as_mapping(resolved.get("trainer"))),
        }
        raw = run.hardware.get("gpus")
        names = [gpu.get("name") if isinstance(gpu, Mapping) else gpu for gpu in raw] if isinstance(raw, list) else []
        self.reported_gpus = [name for name in names if isinstance(name, str) and name]
        self.rollout = self.trainer.rollout(self.settings, self.engine, run.tree)
        self.on_server = self.rollout.server
        # Engines on GPUs where nothing trains: overlapping loops, and a server.
        self.separate_engines = bool(run.tree.overlap) or self.on_server
        # An imported run says what its source contains; the settings it was asked for are the experiment's.
        self.own = self._own_facts(flatten(resolved) if self.imported else self.settings)
        self.machines = self._machines()

    def setup(self) -> DecodeSetup:
        run, declared, workload = self.run, self.declared, self.workload
        gpus = self.machines.gpus
        group = self._setting("num_generations") or positive_int(workload.get("num_generations"))
        parallel = self.own.get("tensor_parallel") or positive_int(declared.get("tensor_parallel"))
        parallel = parallel or self._tensor_parallel(self.settings)
        model, facts, model_contradicted = self._model()
        number_bytes, assumed = self._number_bytes()
        divides = gpus and parallel and gpus % parallel == 0 and not self.separate_engines
        asked = _product(self._setting("prompts"), group)
        lengths = (source.get("max_response_length") for source in (self.own, declared, workload))
        at_once = self.rollout.sequence_limit or self.engine_settings.get(self.engine.max_sequences_option)
        return DecodeSetup(
            gpu=_gpu_name(self.reported_gpus, declared.get("gpu") or workload.get("gpu")),
            gpus=gpus,
            nodes=self.machines.nodes,
            tensor_parallel=parallel,
            replicas=gpus // parallel if divides and gpus and parallel else None,
            model=model,
            facts=facts,
            number_bytes=number_bytes,
            completions=_first_positive(
                self.own.get("batch_size"), declared.get("batch_size"), asked, workload.get("batch_size")
            ),
            group=group,
            concurrency=positive_int(at_once),
            max_response_length=_first_positive(*lengths),
            shortest_prompt=positive_int(as_mapping((run.inputs or {}).get("prompt_tokens")).get("min")),
            assumed=assumed,
            contradicted=(*self._contradicted(), *self.machines.contradicted, *model_contradicted),
            separate_engines=self.separate_engines,
        )

    def _setting(self, word: str) -> int | None:
        return positive_int(self.trainer.lookup(self.settings, word))

    def _own_facts(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What a run itself says, under the names of `import`; what it does not say is absent."""
        trainer, run = self.trainer, self.run
        found: dict[str, Any] = {
            word: positive_int(trainer.lookup(settings, word)) for word in (*_NODES, "max_response_length")
        }
        found["tensor_parallel"] = None if self.engine.in_trainer else self._tensor_parallel(settings)
        found["model"] = trainer.lookup(settings, "model")
        if not run.tree.overlap:  # such a loop trains whatever is ready
            prompts, group = (positive_int(trainer.lookup(settings, word)) for word in ("prompts", "num_generations"))
            found["batch_size"] = _product(prompts, group)
        if "gpus_per_node" not in trainer.keys and self.imported and self.reported_gpus:
            # It may have used fewer GPUs than its node has, where the import says so, but not more.
            used = positive_int(self.declared.get("gpus_per_node"))
            if not (used and used <= len(self.reported_gpus)):
                found["gpus_per_node"] = len(self.reported_gpus)
        return {name: value for name, value in found.items() if value}

    def _machines(self) -> _Machines:
        """The nodes and GPUs of the whole run, as the import's are.

        With separate engines verl's own settings are the trainer's, and no setting says which nodes the engines share.
        """
        own, declared = self.own, {name: positive_int(self.declared.get(name)) for name in _NODES}
        asked = {name: self._setting(name) or positive_int(self.workload.get(name)) for name in _NODES}
        if not self.separate_engines:
            found = {name: own.get(name) or declared[name] or asked[name] for name in _NODES}
            wrong = [
                f"import.{name} is {declared[name]}, the run itself says {own[name]}"
                for name in _NODES
                if own.get(name) and declared[name] and declared[name] != own[name]
            ]
            nodes, per_node = found.values()
            return _Machines(nodes, per_node, _product(nodes, per_node), tuple(wrong))
        of_engines = self.rollout.engine_gpus
        declared_gpus = _product(*declared.values())
        of_trainer = _product(*((own if self.imported else asked).get(name) for name in _NODES))
        total = of_trainer + of_engines if of_trainer and of_engines is not None else None
        nodes = declared["nodes"] if self.imported else asked["nodes"]
        if of_trainer and declared_gpus and (declared_gpus != total if total else declared_gpus <= of_trainer):
            of_run = f"{total}, its engines' with them" if total else f"{of_trainer} without its engines'"
            text = f"import.nodes times import.gpus_per_node is {declared_gpus}, the run itself says {of_run}"
            return _Machines(nodes, asked["gpus_per_node"], total, (text,))
        return _Machines(nodes, asked["gpus_per_node"], total or declared_gpus)

    def _contradicted(self) -> tuple[str, ...]:
        """Where an import declares another GPU, split or work than the run itself says."""
        names = ("tensor_parallel", "batch_size", "max_response_length")
        declared: dict[str, Any] = {"gpu": _gpu_name((), self.declared.get("gpu"))}
        declared |= {name: positive_int(self.declared.get(name)) for name in names}
        own = {"gpu": _gpu_name(self.reported_gpus, None)} | {name: self.own.get(name) for name in names}
        return tuple(
            f"import.{name} is {declared[name]}, the run itself says {value}"
            for name, value in own.items()
            if value is not None and declared[name] is not None and declared[name] != value
        )

    def _tensor_parallel(self, settings: Mapping[str, Any]) -> int | None:
        """GPUs that share one copy of the model in the engine: its own setting, otherwise the trainer's."""
        if self.engine.in_trainer:
            return 1
        if self.on_server:  # the setting is for a colocated engine only
            return None
        size = self.engine_settings.get("tensor_parallel_size")
        return positive_int(size) or positive_int(self.trainer.lookup(settings, "tensor_parallel"))

    def _model(self) -> tuple[str | None, ModelFacts | None, list[str]]:
        """The model's name, its sizes from the trained folder or by that name, and the import's contradiction."""
        own, run = self.own.get("model"), self.run
        prepared = as_mapping((run.inputs or {}).get("model"))
        names = [prepared.get("source"), as_mapping(self.workload.get("model")).get("source")]
        wrong = []
        if self.imported:
            declared = self.declared.get("model")
            names = [own, declared, *names]
            if isinstance(own, str) and isinstance(declared, str):
                if contradicts_declared(own, declared):
                    wrong = [f"import.model is {declared}, the run itself says {own}"]
                elif not is_hub_id(own) or model_facts(own) is None:
                    # A folder or an unknown name does not identify the model: the declared one counts.
                    names = [declared]
        names += [self.settings.get(key) for trainer in trainers() for key in trainer.keys.get("model", ())]
        name = next((hub_id(name) for name in names if isinstance(name, str) and name), None)
        if name is None:
            return None, None, wrong
        path = prepared.get("path")
        if isinstance(path, str) and path:
            # Where inputs.json says, or beside it; the folder may be gone.
            folder = Path(path) if run.inputs_folder is None else run.inputs_folder.absolute() / path
            if folder.is_absolute() and (folder / "config.json").is_file():
                return name, model_facts(str(folder)), wrong
        return name, model_facts(name), wrong

    def _number_bytes(self) -> tuple[int | None, tuple[str, ...]]:
        """Bytes of a weight and of a cached number in the engine, and the assumption behind it."""
        dtype = self.engine_settings.get("dtype") or self.workload.get("dtype")
        if "dtype" in self.trainer.keys:
            dtype = self.trainer.lookup(self.settings, "dtype")
        if dtype not in (None, "", "auto"):
            return _BYTES.get(str(dtype)), ()
        default = self.engine.number_bytes
        text = "two bytes for a weight, the engine's default: no file of the run names the number format"
        return default, (text,) if default else ()

    def unknown(self, setup: DecodeSetup) -> list[str]:
        """What is missing for a decode floor."""

        def hint(key: str) -> str:
            return f" (set import.{key})" if self.imported else ""

        parallel, model, facts = setup.tensor_parallel, setup.model, setup.facts
        undivided = setup.gpus if not (setup.separate_engines or setup.replicas) else None
        stages = self._setting("pipeline_parallel") or 1
        where = "its engines have of their own" if setup.separate_engines else "it ran on"
        sheets = f"the data sheet of the GPU {setup.gpu!r} (known: {', '.join(KNOWN_GPUS)})"
        # Of each group the first that applies.
        groups = (
            ((setup.gpu is None, f"which GPU it ran on{hint('gpu')}"), (gpu_of(setup.gpu) is None, sheets)),
            ((not (setup.gpus or self.on_server), f"how many GPUs {where}"),),
            (
                (self.on_server, "the GPUs of the engine's server, which are not the trainer's"),
                (parallel is None, f"the engine's tensor parallel size{hint('tensor_parallel')}"),
                (stages > 1, f"a roofline for an engine in {stages} pipeline stages"),
                (
                    undivided and undivided % (parallel or 1),
                    f"how engines of {parallel} GPUs are placed on {undivided}",
                ),
            ),
            (
                (model is None, f"which model it trained{hint('model')}"),
                (facts is None, f"the sizes of the model {model}"),
                (
                    facts and facts.decode_parameters is None,
                    f"what a {facts and facts.architecture} reads for a token (counted: {', '.join(COUNTED)})",
                ),
                (
                    facts and not facts.full_attention,
                    f"a roofline for {model}, whose layers attend through a sliding window",
                ),
            ),
            ((not setup.number_bytes, "the number format in which the engine holds the model"),),
        )
        found: list[str] = []
        for group in groups:
            found += [text for applies, text in group if applies][:1]
        found += self._unknown_work()
        if not found and facts and setup.number_bytes and parallel:
            held = (facts.decode_parameters or 0) * setup.number_bytes / parallel
            if held < _LEAST_WEIGHTS:
                return [f"what the chip's caches hold: only {held / 1e6:.0f} MB of weights are on a GPU"]
        return found

    def _unknown_work(self) -> list[str]:
        """Ways of generating for which the response lengths do not give the iterations or the bytes."""
        tree, trainer = self.run.tree, self.trainer
        if tree.overlap:
            return [f"which seconds are generation's: {tree.overlap}"]
        if self.rollout.started_earlier:
            return [self.rollout.started_earlier]
        prefix = trainer.rules.engine_options.replace("{engine}", self.engine.name)
        of_engine = {prefix + word: why for word, why in self.engine.unmodelled_options.items()} if prefix else {}
        options = {**self.rollout.iterations_hidden_by, **of_engine}
        on = [key for key, value in self.settings.items() if key.startswith(tuple(options)) and value not in _OFF]
        return [
            f"a roofline with {option}: {why}"
            for option, why in options.items()
            if any(key == option or key.startswith(f"{option}.") for key in on)
        ]


def _gpu_name(reported: Sequence[str], declared: object) -> str | None:
    """The names that the driver reports, otherwise the declared one."""
    name = " and ".join(sorted({known_name(name) or name for name in reported})) or declared
    return (known_name(str(name)) or str(name)) if name else None


def _first_positive(*values: Any) -> int | None:
    return next((number for value in values if (number := positive_int(value))), None)


def _product(one: int | None, other: int | None) -> int | None:
    return one * other if one and other else None
