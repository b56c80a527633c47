"""Checks one case of verl: settings whose run would be wrong, lost or odd.

What verl's own validation refuses, the rule `settings` reports from the stack (`driver/composed.py`). A rule stands
here if verl accepts the setting silently, or fails only when the queue has been waited for.
"""

from __future__ import annotations

from collections.abc import Iterator

from common.findings import Finding
from common.model_facts import model_facts
from trainers.cases import Case, Check, Rule
from trainers.engine_checks import attention_kernels, context
from trainers.verl.driver.overrides import ACTOR, ROLLOUT
from trainers.verl.releases import release_named

_MODE = "trainer.v1.trainer_mode"
_REWARD, _TEACHERS = "reward.reward_model", "distillation"


def _of_settings(case: Case) -> Iterator[Finding]:
    checks: tuple[Check, ...] = (*_RULES, *release_named(case.version).checks)
    for check in checks:
        yield from check(case)
    if (model := model_facts(str(case.workload["model"]["source"]))) is not None:
        yield from context(case, *release_named(case.version).context(case, model))


def _half_precision(case: Case) -> str | None:
    dtype = case.settings.get(f"{ACTOR}.fsdp_config.model_dtype")
    return str(dtype) if dtype in ("bf16", "bfloat16", "fp16", "float16") else None


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


def _overlapping(case: Case) -> str | None:
    mode = str(case.settings.get(_MODE, "sync"))
    return mode if mode != "sync" else None


def _pools(case: Case) -> dict[str, int]:
    """The GPUs of each pool beside the trainer's."""
    settings = case.settings
    engines = settings.get(_MODE) == "separate_async" and settings.get("trainer.use_v1", True)
    sections = {
        ROLLOUT: engines,
        _REWARD: settings.true(f"{_REWARD}.enable_resource_pool"),
        _TEACHERS: settings.true(f"{_TEACHERS}.enabled"),
    }
    return {
        section: settings.int(f"{section}.nnodes") * settings.int(f"{section}.n_gpus_per_node")
        for section, has in sections.items()
        if has
    }


def _beside(case: Case) -> str | None:
    pools = ", ".join(f"{gpus} by {section}" for section, gpus in _pools(case).items())
    return f"{pools} beside the trainer's {case.gpus}" if pools else None


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
        "trainer-mode",
        "odd",
        _overlapping,
        f"{_MODE}: {{got}}",
        "generation and update overlap, so the phases of a step do not add up to it, and their shares have no meaning",
        "verl 0.9.1, trainer/ppo/v1",
        f"{_MODE}: sync, to compare engines",
    ),
    Rule(
        "setting-gpus-beside",
        "impossible",
        _beside,
        "a job has only the trainer's GPUs (got {got})",
        "verl {version} ends with an error, or waits for GPUs that the job does not have",
        "verl 0.9.1, trainer/ppo/v1/trainer_separate_async.py:64, trainer_base.py:823 and :838",
        f"{_MODE}: sync or colocate_async, without {_REWARD}.enable_resource_pool and {_TEACHERS}; or train it "
        "elsewhere and import the run",
        on_imported=False,
    ),
    Rule(
        "tensor-parallel-gpus",
        "impossible",
        _engine_over_gpus,
        f"{ROLLOUT}.tensor_model_parallel_size (x data_parallel_size) must divide the GPUs of a node (got {{got}}); "
        "verl's default is 2",
        "an assertion ends verl when its workers start",
        "verl 0.4.1, workers/fsdp_workers.py:406; verl 0.9.1, workers/engine_workers.py:659",
        f"{ROLLOUT}.tensor_model_parallel_size: a divisor of the GPUs; or more GPUs (workload.gpus_per_node)",
    ),
    Rule(
        "dynamic-tokens",
        "impossible",
        _packed_too_short,
        f"{ACTOR}.ppo_max_token_len_per_gpu must hold one prompt with its completion (got {{got}} GPUs)",
        "an assertion ends verl: 0.4.1 in the first step, 0.9.1 as soon as a sequence is longer",
        "verl 0.4.1, utils/seqlen_balancing.py:263; verl 0.9.1, utils/seqlen_balancing.py:384",
        f"{ACTOR}.ppo_max_token_len_per_gpu: prompt and response at their longest, or more",
    ),
    Rule(
        "model-length",
        "impossible",
        _engine_too_short,
        f"{ROLLOUT}.max_model_len must hold one prompt with its completion (got {{got}})",
        "the engine rejects such prompts, or truncates responses there",
        "docs/preflight.md#impossible",
        f"{ROLLOUT}.max_model_len: prompt and response at their longest, or more",
    ),
    Rule(
        "checkpoint-contents",
        "impossible",
        _resumes_without,
        f"{ACTOR}.checkpoint must have model, optimizer and extra (got {{got}})",
        "verl loads what is there, without a message: a stopped run would resume without its optimizer's moments, or "
        "start again",
        "verl 0.9.1, utils/checkpoint/fsdp_checkpoint_manager.py, load_checkpoint",
        f"remove {ACTOR}.checkpoint, or add what is missing",
        on_imported=False,
    ),
)


CHECKS: tuple[Check, ...] = (_of_settings, attention_kernels)
