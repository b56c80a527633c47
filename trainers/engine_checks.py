"""Checks of an engine's settings that do not depend on the trainer."""

from __future__ import annotations

from collections.abc import Iterator

from common.findings import Finding
from common.model_facts import model_facts
from trainers.cases import Case


def sglang_speed_on_cpu(case: Case) -> Iterator[Finding]:
    """SGLang without its kernels: its behaviour is real, its speed is not."""
    if case.engine.name == "sglang" and not case.on_gpu:
        yield Finding(
            "unequal",
            "sglang-speed-on-cpu",
            (case.arm,),
            "SGLang generates on a CPU, without its compiled kernels",
            "its speed here says nothing about GPUs; its scheduler, cache, sampler and weight updates are real",
            "SGLang 0.5.23 on a CPU without AMX, engines/sglang/; docs/preflight.md#unequal",
            "use the rewards, lengths and correctness of this report, not its speeds; on GPUs use trainer verl",
            scope="on a CPU without SGLang's compiled kernels",
            settle="the same comparison on GPUs (trainer verl has both engines there)",
        )


def attention_kernels(case: Case) -> Iterator[Finding]:
    """Attention kernels that the lock of the stack does not have."""
    option = "attention_backend"
    wanted = case.engine_settings.get(option)
    packages = case.pins.packages
    needed = case.engine.attention_packages.get(str(wanted).lower(), ())
    if needed and packages and case.on_gpu and not case.imported and not set(needed) & set(packages):
        yield Finding(
            "impossible",
            "attention-kernels-missing",
            (case.arm,),
            f"{option}: {wanted}, and stack {case.stack} has no {' or '.join(needed)}",
            f"{case.engine.label} ends with an error when it is built, or uses other kernels",
            f"envs/{case.stack}/requirements.lock; the imports of {case.engine.label}'s attention backends",
            f"remove {option}, or use a stack of your own that also pins {needed[0]}",
        )


def context(case: Case, happens: str = "", source: str = "the check of length") -> Iterator[Finding]:
    """Sequences beyond the model's positions; `happens`: what then, where engine and trainer do not refuse them."""
    model = model_facts(str(case.workload["model"]["source"]))
    longest = max(case.longest, case.settings.int(case.trainer.key("max_model_len")))
    if model is None or longest <= model.context:
        return
    if case.engine.in_trainer:
        happens = "nothing rejects it: the model continues at positions that it was not trained on"
    yield Finding(
        "odd" if happens else "impossible",
        "context",
        (case.arm,),
        f"prompt and response may have {longest} tokens, and the model's positions end at {model.context}",
        happens or f"{case.engine.label} or {case.trainer.name} refuses it when the engine is built",
        f"{model.source}, max_position_embeddings; {source}",
        f"workload.max_prompt_length and max_response_length: together at most {model.context}",
    )
