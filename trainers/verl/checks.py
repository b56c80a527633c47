"""Checks one case of verl: settings that it refuses, and settings with another effect than they seem to have."""

from __future__ import annotations

from collections.abc import Iterator

from common.findings import Finding
from common.model_facts import ModelFacts
from trainers.cases import Case, Check, Variables
from trainers.engine_checks import attention_kernels
from trainers.rows import Rule
from trainers.verl.driver.overrides import ACTOR, MODEL, ROLLOUT
from trainers.verl.driver.rules import problems
from trainers.verl.releases import release_named


def _refused(case: Case) -> Iterator[Finding]:
    """Settings that verl refuses; a run that was trained elsewhere shows that its choices are allowed."""
    release = release_named(case.version)
    for problem in problems(release, case.settings.values):
        if case.imported and problem.code.startswith("setting-"):
            continue
        yield Finding(
            "impossible",
            problem.code,
            (case.arm,),
            problem.text,
            problem.why.replace("{version}", case.version),
            problem.source or release.sources.get(problem.code, "trainers/verl/driver/rules.py"),
            problem.change,
        )


def _of_settings(case: Case, variables: Variables) -> Iterator[Finding]:
    """Refused settings, and other findings whose code is not already refused."""
    refused = list(_refused(case))
    yield from refused
    codes = {finding.code for finding in refused}
    checks: tuple[Check, ...] = (*_RULES, *release_named(case.version).checks)
    for check in checks:
        yield from (finding for finding in check(case, variables) if finding.code not in codes)


def _half_precision(case: Case) -> str | None:
    dtype = case.settings.get(f"{ACTOR}.fsdp_config.model_dtype")
    return str(dtype) if dtype in ("bf16", "bfloat16", "fp16", "float16") else None


def _larger_mini_batch(case: Case) -> str | None:
    batch, mini = case.settings.int("data.train_batch_size"), case.settings.int(f"{ACTOR}.ppo_mini_batch_size")
    if mini <= batch or not case.settings.true(f"{ACTOR}.use_dynamic_bsz"):
        return None
    return f"the mini-batch ({mini} prompts) is larger than the batch ({batch} prompts)"


def _adapter_served(case: Case) -> int | None:
    served = case.engine.name == "sglang" and not case.settings.true(f"{MODEL}.lora.merge")
    return (case.lora or None) if served else None


def _over_nodes(case: Case) -> str | None:
    per_node, tp = case.settings.int("trainer.n_gpus_per_node", 1), case.tensor_parallel
    return f"an engine of {tp} GPUs spans nodes of {per_node}" if tp > per_node and case.gpus % tp == 0 else None


def _validation_in_step(case: Case) -> str | None:
    freq, steps = case.settings.int("trainer.test_freq", -1), int(case.workload["steps"])
    if freq <= 0 or not release_named(case.version).validates_in_step:
        return None
    # The last step is validated too, also where `freq` does not divide it.
    return f"every {freq} steps is part of those steps' time ({-(-steps // freq)} of {steps}, always the last one)"


def _unchunked(case: Case) -> str | None:
    limit = case.settings.number(f"{ROLLOUT}.max_num_batched_tokens")
    longest = case.settings.int(f"{ROLLOUT}.max_model_len") or case.longest
    off = case.settings.get(f"{ROLLOUT}.enable_chunked_prefill") is False
    if case.engine.name != "vllm" or not off or limit is None or limit >= longest:
        return None
    return f"{limit:g}"


def _overlapping(case: Case) -> str | None:
    mode = str(case.settings.get("trainer.v1.trainer_mode", "sync"))
    return mode if mode != "sync" else None


_RULES = (
    Rule(
        "one-completion",
        "odd",
        lambda case: (
            int(case.workload["num_generations"]) == 1 and case.settings.get("algorithm.adv_estimator") == "grpo"
        ),
        "GRPO with one completion per prompt (num_generations: 1)",
        "a group of one has mean 0 and deviation 1 in verl, so the advantage is the score itself: REINFORCE without a "
        "baseline. Its timings are valid, but it hardly learns",
        "verl {version}, trainer/ppo/core_algos.py, compute_grpo_outcome_advantage",
        "workload.num_generations: 4 or more, with batch_size counting all completions",
    ),
    Rule(
        "mini-batch",
        "odd",
        _larger_mini_batch,
        "{got}",
        "verl makes one optimizer step of the whole batch. 0.4.1 divides its gradient by the larger number, so it is "
        "smaller by batch over mini-batch. 0.9.1 pads the batch with rows that are computed and discarded",
        "verl 0.4.1, workers/actor/dp_actor.py:509; verl 0.9.1, workers/config/actor.py:225",
        "workload.mini_batch_size: at most batch_size, or null for the whole batch",
    ),
    Rule(
        "weights-in-half",
        "odd",
        _half_precision,
        "the optimizer keeps the policy in {got} (actor.fsdp_config.model_dtype)",
        "with a small learning rate most updates are smaller than a rounding step of such weights and are lost: fast "
        "and small, but it hardly learns. verl's default is float32",
        "verl 0.4.1, workers/fsdp_workers.py:203; verl 0.9.1, trainer/config/engine/fsdp.yaml, model_dtype",
        f"remove {ACTOR}.fsdp_config.model_dtype (float32 takes more memory; passes are still in bfloat16)",
    ),
    Rule(
        "validation-in-step",
        "odd",
        _validation_in_step,
        "validation {got}",
        "verl {version} runs it inside timing_s/step (from 0.6.0 on it is outside); the report excludes these steps "
        "from the timings in all arms",
        "verl 0.4.1, trainer/ppo/ray_trainer.py:1151; verl PR 3117",
        "workload.test_steps: 0 while timing",
        on_imported=False,
    ),
    Rule(
        "validation-first",
        "odd",
        lambda case: case.settings.true("trainer.val_before_train") and not case.workload.get("samples"),
        "a validation before the first step",
        "it takes time in every attempt, also after a resume, and is in no step's time",
        "verl 0.4.1, trainer/ppo/ray_trainer.py:930; verl 0.9.1, trainer/ppo/v1/trainer_base.py:439",
        "trainer.val_before_train: False",
        on_imported=False,
    ),
    Rule(
        "batched-tokens",
        "odd",
        _unchunked,
        "chunked prefill is off, and max_num_batched_tokens ({got}) is less than the longest sequence",
        "verl {version} raises the limit itself, and only warns",
        "verl 0.9.1, workers/rollout/vllm_rollout/vllm_async_server.py:1113",
        f"{ROLLOUT}.max_num_batched_tokens: prompt and response at their longest, or more",
    ),
    Rule(
        "trainer-mode",
        "odd",
        _overlapping,
        "trainer.v1.trainer_mode: {got}",
        "generation and update overlap, so the phases of a step do not add up to it, and their shares have no meaning",
        "verl 0.9.1, trainer/ppo/v1",
        "trainer.v1.trainer_mode: sync, to compare engines",
    ),
    Rule(
        "lora-sglang",
        "odd",
        _adapter_served,
        "LoRA (rank {got}) served by SGLang as an adapter",
        "every token computes the adapter too, with different kernels in vLLM and SGLang",
        "verl 0.9.1, workers/rollout/sglang_rollout/async_sglang_server.py:344",
        f"{MODEL}.lora.merge: True in all arms",
    ),
    Rule(
        "tensor-parallel-nodes",
        "odd",
        _over_nodes,
        "{got}",
        "two all-reduces per layer and token cross the network",
        "docs/preflight.md#odd",
        f"{ROLLOUT}.tensor_model_parallel_size: at most the GPUs of a node",
    ),
)


CHECKS: tuple[Check, ...] = (_of_settings, attention_kernels)


def context(case: Case, model: ModelFacts) -> tuple[bool, str, str]:
    """What happens to sequences beyond the model's context: whether they are refused, why, and the source."""
    release, engine = release_named(case.version), case.engine.name
    source = release.context_checked.get(engine, "the check of max_model_len")
    if engine in release.rope_scaling_unchecked and model.rope_scaling:
        why = f"verl {case.version} skips the check for a model with rope_scaling; the rest depends on the model"
        return False, why, source
    if not release.checks_model_length and case.settings.int(f"{ROLLOUT}.max_model_len") <= model.context:
        why = f"verl {case.version} does not warn, and {case.engine.label} truncates responses at the model's context"
        return False, why, source
    return True, f"{case.engine.label} or verl refuses it when the engine is built", source
