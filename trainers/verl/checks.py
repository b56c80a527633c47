"""Finds in one case of verl what the rules of checks.toml are about, where their table cannot say it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from common.findings import Finding
from common.model_facts import model_facts
from trainers.cases import Case, Check, rules_in
from trainers.engine_checks import attention_kernels, context
from trainers.verl.driver.overrides import ACTOR, MODEL, ROLLOUT
from trainers.verl.given import pools_beside
from trainers.verl.releases import release_named

_MODE = "trainer.v1.trainer_mode"


def _one_completion(case: Case) -> bool:
    return int(case.workload["num_generations"]) == 1 and case.settings.get("algorithm.adv_estimator") == "grpo"


def _larger_mini_batch(case: Case) -> str | None:
    batch, mini = case.settings.int("data.train_batch_size"), case.settings.int(f"{ACTOR}.ppo_mini_batch_size")
    if mini <= batch or not case.settings.true(f"{ACTOR}.use_dynamic_bsz"):
        return None
    return f"the mini-batch ({mini} prompts) is larger than the batch ({batch} prompts)"


def _engine_over_gpus(case: Case) -> str | None:
    nodes, per_node = case.settings.int("trainer.nnodes", 1), case.settings.int("trainer.n_gpus_per_node", 1)
    replica = case.tensor_parallel * max(1, case.settings.int(f"{ROLLOUT}.data_parallel_size", 1))
    if nodes * per_node % replica or (per_node % replica and replica % per_node):
        return f"{replica}, with {nodes} node{'s' * (nodes > 1)} of {per_node}"
    return None


def _packed_too_short(case: Case) -> str | None:
    """0.9.1 ends only when a sequence is longer: perhaps after hours."""
    settings, room = case.settings, case.settings.number(f"{ACTOR}.ppo_max_token_len_per_gpu")
    if room is None or not settings.true(f"{ACTOR}.use_dynamic_bsz"):
        return None
    gpus = max(1, settings.int(f"{ACTOR}.ulysses_sequence_parallel_size", 1))
    return f"{room:g} on each of {gpus}" if room * gpus < case.longest else None


def _engine_too_short(case: Case) -> int | None:
    length = case.settings.int(f"{ROLLOUT}.max_model_len")
    return length if 0 < length < case.longest else None


def _resumes_without(case: Case) -> str | None:
    for key in ("save_contents", "load_contents"):
        found = case.settings.get(f"{ACTOR}.checkpoint.{key}")
        if isinstance(found, list) and not {"model", "optimizer", "extra"} <= {*found}:
            return f"{key}: {', '.join(map(str, found)) or 'none'}"
    return None


def _pools(case: Case) -> dict[str, int]:
    """The GPUs of each pool beside the trainer's."""
    settings = case.settings
    engines = settings.get(_MODE) == "separate_async" and settings.get("trainer.use_v1", True)
    of_engines = settings.int(f"{ROLLOUT}.nnodes") * settings.int(f"{ROLLOUT}.n_gpus_per_node")
    return ({ROLLOUT: of_engines} if engines else {}) | pools_beside(settings)


def _gpus_beside(case: Case) -> str | None:
    pools = ", ".join(f"{gpus} by {section}" for section, gpus in _pools(case).items())
    return f"{pools} beside the trainer's {case.gpus}" if pools else None


def _validation_in_step(case: Case) -> str | None:
    freq, steps = case.settings.int("trainer.test_freq", -1), int(case.workload["steps"])
    # The last step is validated too, also where `freq` does not divide it.
    every = (
        f"every {freq} steps is part of those steps' time ({-(-steps // max(1, freq))} of {steps}, always the last one)"
    )
    return every if freq > 0 else None


def _lora_on_sglang(case: Case) -> int | None:
    return case.lora if case.lora and case.engine.name == "sglang" else None


def _dummy_base(case: Case) -> str | None:
    load = str(case.settings.get(f"{ROLLOUT}.load_format"))
    return load if case.lora and case.settings.get(f"{ROLLOUT}.layered_summon") and load.startswith("dummy") else None


def _dropped_remainder(case: Case) -> str | None:
    mini = case.settings.int(f"{ACTOR}.ppo_mini_batch_size") * case.settings.int(f"{ROLLOUT}.n", 1)
    groups = case.gpus // max(1, case.settings.int(f"{ACTOR}.ulysses_sequence_parallel_size", 1))
    return f"{mini} completions over {groups} data-parallel groups" if groups and mini % groups else None


def _engine_options(case: Case) -> list[str]:
    """The engine's own options that the run sets; those of the packaged configuration do not count."""
    section = f"{ROLLOUT}.engine_kwargs.{case.engine.name}"
    return [key for key in case.settings.under(section) if f"{section}.{key}" in case.settings.given]


def _ignored_options(case: Case) -> str | None:
    given, ignored = (
        _engine_options(case),
        case.engine.name == "sglang" or case.settings.get(f"{ROLLOUT}.mode") == "async",
    )
    return f"{case.engine.name} ({', '.join(given)})" if given and ignored else None


def _added_to_rollout(case: Case) -> str | None:
    """Keys directly in the rollout's section that verl's own configuration lacks."""
    start = f"+{ROLLOUT}."
    keys = [text.partition("=")[0] for text in case.overrides]
    return ", ".join(key for key in keys if key.startswith(start) and "." not in key.removeprefix(start)) or None


def _without_mismatch(case: Case) -> str | None:
    temperature = case.settings.number(f"{ROLLOUT}.temperature")
    if case.settings.true(f"{ROLLOUT}.multi_turn.enable"):
        return "multi_turn"
    return None if temperature in (None, 1) else f"temperature {temperature:g}"


def _served_adapter(case: Case) -> int | None:
    served = case.engine.name == "sglang" and not case.settings.true(f"{MODEL}.lora.merge")
    return case.lora if served and case.lora else None


def _ignored_ignore_eos(case: Case) -> bool:
    asked = case.engine.name == "sglang" and case.settings.true(f"{ROLLOUT}.ignore_eos")
    return asked and not case.engine_settings.get("preferred_sampling_params.ignore_eos")


def _context(case: Case) -> Iterator[Finding]:
    if (model := model_facts(str(case.workload["model"]["source"]))) is not None:
        yield from context(case, *release_named(case.version).context(case, model))


CHECKS: tuple[Check, ...] = (
    *rules_in(Path(__file__).with_suffix(".toml"), globals()),
    _context,
    attention_kernels,
)
