"""Do batches, steps and lengths fit together? Checks of one case at a time."""

from __future__ import annotations

from collections.abc import Iterator

from common.findings import Finding, Level
from trainers.cases import ACTOR, REF, ROLLOUT, Case
from workflow.preflight.surroundings import Surroundings

_TRAINER4 = "verl 0.4.1, trainer/ppo/ray_trainer.py"
_WORKERS4 = "verl 0.4.1, workers/fsdp_workers.py"
_CONFIG9 = "verl 0.9.1, utils/config.py"
_ACTOR9 = "verl 0.9.1, workers/config/actor.py"


def _finding(case: Case, level: Level, code: str, what: str, why: str, source: str, change: str) -> Finding:
    return Finding(level, code, (case.arm,), what, why, source, change)


def one_completion(case: Case, place: Surroundings) -> Iterator[Finding]:
    """GRPO with a group of one."""
    if int(case.workload["num_generations"]) == 1 and case.settings.get("algorithm.adv_estimator") == "grpo":
        yield _finding(
            case,
            "odd",
            "one-completion",
            "GRPO with one completion per prompt (num_generations: 1)",
            "a group of one has mean 0 and deviation 1 in verl, so the advantage is the score itself: "
            "REINFORCE without a "
            "baseline. As quick to time, but it hardly learns",
            f"verl {case.version}, trainer/ppo/core_algos.py, compute_grpo_outcome_advantage",
            "workload.num_generations: 4 or more, with batch_size counting all completions",
        )


_LARGER_MINI_BATCH = {
    "0.4.1": "verl makes one optimizer step of the whole batch, and divides its gradient by the larger number "
    "(workers/actor/dp_actor.py:509): it is smaller by batch over mini-batch",
    "0.9.1": "verl makes one optimizer step of the whole batch, padded to the larger number with rows that are "
    "computed and thrown away",
}


def mini_batch(case: Case, place: Surroundings) -> Iterator[Finding]:
    """A mini-batch that is larger than the batch."""
    if case.trainer != "verl":
        return
    batch, mini = case.settings.int("data.train_batch_size"), case.settings.int(f"{ACTOR}.ppo_mini_batch_size")
    if mini <= batch:
        return
    dynamic = case.settings.true(f"{ACTOR}.use_dynamic_bsz")
    yield _finding(
        case,
        "odd" if dynamic else "impossible",
        "mini-batch",
        f"the mini-batch ({mini} prompts) is larger than the batch ({batch} prompts)",
        _LARGER_MINI_BATCH[case.version]
        if dynamic and case.version in _LARGER_MINI_BATCH
        else "verl ends with an assertion as long as use_dynamic_bsz is off",
        f"{_TRAINER4}:437" if case.version == "0.4.1" else f"{_ACTOR9}:225",
        "workload.mini_batch_size: at most batch_size, or null for the whole batch",
    )


def batch_over_gpus(case: Case, place: Surroundings) -> Iterator[Finding]:
    """A batch that cannot be dealt out to the GPUs."""
    if case.trainer != "verl" or not case.gpus:
        return
    if case.version != "0.4.1" and case.settings.true(f"{ACTOR}.use_dynamic_bsz"):
        return
    completions = case.settings.int("data.train_batch_size") * max(1, case.settings.int(f"{ROLLOUT}.n", 1))
    if completions % case.gpus:
        yield _finding(
            case,
            "impossible",
            "batch-over-gpus",
            f"{completions} completions per step cannot be dealt out to {case.gpus} GPUs",
            "verl ends with an assertion: each GPU takes the same number",
            f"{_TRAINER4}:377" if case.version == "0.4.1" else f"{_CONFIG9}:124",
            f"workload.batch_size: a multiple of {case.gpus}",
        )


def micro_batches(case: Case, place: Surroundings) -> Iterator[Finding]:
    """Micro-batches that are missing, or do not divide what a GPU gets of a mini-batch."""
    if case.trainer != "verl":
        return
    settings = case.settings
    if not settings.true(f"{ACTOR}.use_dynamic_bsz"):
        wanted = [f"{ACTOR}.ppo_micro_batch_size", f"{ROLLOUT}.log_prob_micro_batch_size"]
        if settings.true(f"{ACTOR}.use_kl_loss"):
            wanted.append(f"{REF}.log_prob_micro_batch_size")
        for key in wanted:
            if settings.composed and key not in settings and f"{key}_per_gpu" not in settings:
                continue  # a configuration that is not whole does not say it
            if settings.get(key) is None and settings.get(f"{key}_per_gpu") is None:
                yield _finding(
                    case,
                    "impossible",
                    "micro-batch-missing",
                    f"{key}_per_gpu is not set",
                    "verl refuses to start without it as long as use_dynamic_bsz is off",
                    f"{_TRAINER4}:385" if case.version == "0.4.1" else f"{_CONFIG9}:155",
                    "workload.micro_batch_size: completions per pass and GPU",
                )
    micro = settings.int(f"{ACTOR}.ppo_micro_batch_size_per_gpu")
    if case.version != "0.4.1" or not micro or not case.gpus:
        return
    ways = max(1, case.gpus // max(1, settings.int(f"{ACTOR}.ulysses_sequence_parallel_size", 1)))
    mini = settings.int(f"{ACTOR}.ppo_mini_batch_size") * max(1, settings.int(f"{ROLLOUT}.n", 1))
    of_gpu = mini // ways
    if of_gpu == 0 or of_gpu % micro:
        yield _finding(
            case,
            "impossible",
            "micro-batch",
            f"a GPU gets {of_gpu} completions of a mini-batch ({mini} over {ways}), which micro-batches of {micro} do "
            "not divide",
            "verl's workers end with an assertion, also with use_dynamic_bsz, which does not use the number",
            f"{_WORKERS4}:{158 if of_gpu == 0 else 165}",
            "workload.micro_batch_size: a divisor of the completions per GPU and mini-batch",
        )


def dynamic_tokens(case: Case, place: Surroundings) -> Iterator[Finding]:
    """Dynamic batches whose limit is shorter than a sequence."""
    if case.trainer != "verl":
        return
    parallel = max(1, case.settings.int(f"{ACTOR}.ulysses_sequence_parallel_size", 1))
    short = []
    for switch, key in (
        (f"{ACTOR}.use_dynamic_bsz", f"{ACTOR}.ppo_max_token_len_per_gpu"),
        (f"{ROLLOUT}.log_prob_use_dynamic_bsz", f"{ROLLOUT}.log_prob_max_token_len_per_gpu"),
        (f"{REF}.log_prob_use_dynamic_bsz", f"{REF}.log_prob_max_token_len_per_gpu"),
    ):
        limit = case.settings.number(key)
        used = key.startswith((ACTOR, ROLLOUT)) or case.settings.true(f"{ACTOR}.use_kl_loss")
        if used and case.settings.true(switch) and limit is not None and limit * parallel < case.longest:
            short.append(f"{key} ({limit:g})")
    if short:
        always = case.version == "0.4.1"
        yield _finding(
            case,
            "impossible" if always else "odd",
            "dynamic-tokens",
            f"{' and '.join(short)}: fewer tokens than one sequence may have ({case.longest})",
            "verl ends with an assertion in the first step: it compares with the padded length"
            if always
            else "verl ends with an assertion as soon as a sequence is longer",
            f"verl {case.version}, utils/seqlen_balancing.py:{263 if always else 384}",
            f"{ACTOR}.ppo_max_token_len_per_gpu: {case.longest} or more",
        )


def learning_rate_warmup(case: Case, place: Surroundings) -> Iterator[Finding]:
    """A warm-up that outlasts the run."""
    warmup, steps = int(case.workload.get("lr_warmup_steps") or 0), int(case.workload["steps"])
    if warmup and warmup >= steps:
        yield _finding(
            case,
            "odd",
            "lr-warmup",
            f"the learning rate warms up over {warmup} steps, and the run has {steps}",
            "it never reaches the rate that is asked for",
            "docs/preflight.md#odd",
            "workload.lr_warmup_steps: fewer than steps, or 0",
        )


def weights_in_half(case: Case, place: Surroundings) -> Iterator[Finding]:
    """Weights and moments of AdamW in bfloat16, where a small learning rate rounds to nothing."""
    dtype = str(case.settings.get(f"{ACTOR}.fsdp_config.model_dtype", "fp32"))
    if case.trainer == "verl" and dtype in ("bf16", "bfloat16", "fp16", "float16"):
        yield _finding(
            case,
            "odd",
            "weights-in-half",
            f"the optimizer holds the policy in {dtype} (actor.fsdp_config.model_dtype)",
            f"with a learning rate of {case.workload['learning_rate']:g} most updates are smaller than a rounding step "
            "of such weights and are lost: quick and small, but it hardly learns. verl's default is float32",
            "verl 0.4.1, workers/fsdp_workers.py:203"
            if case.version == "0.4.1"
            else "verl 0.9.1, trainer/config/engine/fsdp.yaml, model_dtype",
            f"{ACTOR}.fsdp_config.model_dtype: fp32 (it takes more memory; passes are in bfloat16 all the same)",
        )


def reward_key(case: Case, place: Surroundings) -> Iterator[Finding]:
    """A reward function where 0.9.1 does not look for it."""
    if case.trainer != "verl" or case.version == "0.4.1":
        return
    old = [one for one in case.overrides if one.lstrip("+").startswith("custom_reward_function.")]
    if old:
        yield _finding(
            case,
            "impossible",
            "reward-key",
            f"{old[0].split('=')[0]} is set, which verl {case.version} does not read",
            "its default entry point never moves the old key to the new one: the run would train on "
            "verl's own reward for "
            "the data source, or fail for an unknown one, and say nothing of yours",
            "verl 0.9.1, trainer/ppo/reward.py:70; only fully_async_main.py:237 moves the key",
            "workload.rewards; or, in your own verl runs, reward.custom_reward_function.path and .name",
        )


def validation(case: Case, place: Surroundings) -> Iterator[Finding]:
    """Validation in the middle of what is timed."""
    if case.trainer != "verl":
        return
    freq, steps = case.settings.int("trainer.test_freq", -1), int(case.workload["steps"])
    if freq > 0 and _before(case.version, (0, 6)):
        times = max(1, steps // freq)
        yield _finding(
            case,
            "odd",
            "validation-in-step",
            f"validation every {freq} steps is part of those steps' time ({times} of {steps}, the last one always)",
            f"verl {case.version} runs it inside timing_s/step (from 0.6.0 on it is outside); the "
            "report leaves these steps "
            "out of the timings, in all arms alike",
            f"{_TRAINER4}:1151; verl PR 3117",
            "workload.test_steps: 0 while timing",
        )
    if case.settings.get("trainer.val_before_train") is True:
        yield _finding(
            case,
            "odd",
            "validation-first",
            "a validation before the first step",
            "it costs time in every attempt, also after a resume, and no step's time shows it",
            f"{_TRAINER4}:930" if case.version == "0.4.1" else "verl 0.9.1, trainer/ppo/v1/trainer_base.py:439",
            "trainer.val_before_train: False",
        )


def _before(version: str, release: tuple[int, int]) -> bool:
    parts = version.split(".")
    return tuple(int(part) if part.isdigit() else 0 for part in parts[:2]) < release


CHECKS = (
    one_completion,
    mini_batch,
    batch_over_gpus,
    micro_batches,
    dynamic_tokens,
    learning_rate_warmup,
    weights_in_half,
    reward_key,
    validation,
)
