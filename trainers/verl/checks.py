"""Checks one case of verl: what it would stop at, and what runs otherwise than it looks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from common.findings import Finding
from common.model_facts import ModelFacts
from trainers.cases import Case
from trainers.memory_estimate import MemoryEstimate, estimate_of
from trainers.protocol import Check, Variables
from trainers.rule import Rule
from trainers.verl.behaviours import PREFERRED
from trainers.verl.driver.overrides import ACTOR, MODEL, ROLLOUT
from trainers.verl.driver.rules import problems

_VLLM4 = "verl 0.4.1, workers/rollout/vllm_rollout/vllm_rollout_spmd.py"
_SGLANG4 = "verl 0.4.1, workers/rollout/sglang_rollout/sglang_rollout.py"
_VLLM9 = "verl 0.9.1, workers/rollout/vllm_rollout/vllm_async_server.py"
_SGLANG9 = "verl 0.9.1, workers/rollout/sglang_rollout/async_sglang_server.py"
_TRAINER4 = "verl 0.4.1, trainer/ppo/ray_trainer.py"
_CONFIG9 = "verl 0.9.1, utils/config.py"

_STOPS = "verl {version} refuses it, often only when the workers and the engine are built"
# Code of a problem -> why it stops (None: as above), where 0.4.1 and 0.9.1 have it, and what to change.
_PROBLEMS: Mapping[str, tuple[str | None, tuple[str, str], str]] = {
    "batch-over-gpus": (
        "verl ends with an assertion: each GPU takes the same number",
        (f"{_TRAINER4}:377", f"{_CONFIG9}:124"),
        "workload.batch_size: a multiple of the GPUs",
    ),
    "mini-batch": (
        "verl ends with an assertion as long as use_dynamic_bsz is off",
        (f"{_TRAINER4}:437", "verl 0.9.1, workers/config/actor.py:225"),
        "workload.mini_batch_size: at most batch_size, or null for the whole batch",
    ),
    "micro-batch": (
        "verl's workers end with an assertion, in 0.4.1 also with use_dynamic_bsz, which does not use the number",
        ("verl 0.4.1, workers/fsdp_workers.py:158 and :165", "verl 0.9.1, workers/engine_workers.py"),
        "workload.micro_batch_size: a divisor of the completions per GPU and mini-batch",
    ),
    "micro-batch-missing": (
        "verl refuses to start without it as long as use_dynamic_bsz is off",
        (f"{_TRAINER4}:385", f"{_CONFIG9}:155"),
        "workload.micro_batch_size: completions per pass and GPU",
    ),
    "dynamic-tokens": (
        "verl ends with an assertion: 0.4.1 in the first step, 0.9.1 as soon as a sequence is longer",
        ("verl 0.4.1, utils/seqlen_balancing.py:263", "verl 0.9.1, utils/seqlen_balancing.py:384"),
        f"{ACTOR}.ppo_max_token_len_per_gpu: prompt and response at their longest, or more",
    ),
    "tensor-parallel-gpus": (
        "verl ends with an assertion",
        ("verl 0.4.1, workers/fsdp_workers.py:406", "verl 0.9.1, workers/engine_workers.py:659"),
        f"{ROLLOUT}.tensor_model_parallel_size: a divisor of the GPUs; or more GPUs (workload.gpus_per_node)",
    ),
    "batched-tokens": (
        "verl 0.4.1 refuses it with chunked prefill, though vLLM itself would not",
        (f"{_VLLM4}:128", f"{_VLLM9}:1113"),
        f"{ROLLOUT}.max_num_batched_tokens: prompt and response at their longest, or more",
    ),
    "eager-and-cache": (
        "verl 0.4.1 ends with an assertion when the engine is built",
        (f"{_VLLM4}:90; {_SGLANG4}:288; verl issue 995", ""),
        f"{ROLLOUT}.free_cache_engine: False. It costs no memory in 0.4.1: with the vLLM and SGLang pinned here the "
        "engine sleeps between rollouts all the same",
    ),
    "lora-sglang": (
        "verl 0.4.1 hands SGLang the adapters' weights under names that it does not know, and nothing refuses it: the "
        "engine would generate from dummy weights or fail. First supported in 0.8.0",
        ("verl 0.4.1, workers/sharding_manager/fsdp_sglang.py:114, which has no word of LoRA", ""),
        f"the vLLM engine for LoRA, or a stack of 0.9.1 with {MODEL}.lora.merge: True",
    ),
    "rollout-mode": (
        "it is no mode of this release, or has been removed (sync in 0.9.1); verl {version} ends with an error",
        ("verl 0.4.1, workers/fsdp_workers.py:430", "verl 0.9.1, workers/config/rollout.py"),
        f"take {ROLLOUT}.mode out",
    ),
}
_OF_ANY = (None, ("trainers/verl/driver/rules.py", "trainers/verl/driver/rules.py"), "the setting, as it must be")


def _refused(case: Case, variables: Variables) -> Iterator[Finding]:
    """Everything that verl would stop at; of a run that has run, what of it was chosen shows that it can."""
    for problem in problems(case.version, case.settings.values):
        if case.imported and problem.code.startswith("setting-"):
            continue
        why, sources, change = _PROBLEMS.get(problem.code, _OF_ANY)
        yield Finding(
            "impossible",
            problem.code,
            (case.arm,),
            problem.text,
            (why or _STOPS).replace("{version}", case.version),
            sources[case.version != "0.4.1"],
            change,
        )


def _is(key: str, *wanted: Any, version: str = "", engine: str = "") -> Any:
    """Finds a setting that has one of some values, in one release or with one engine, if these are given."""

    def when(case: Case) -> Any:
        value = case.settings.get(key)
        there = version in ("", case.version) and engine in ("", case.engine.name)
        return str(value) if there and value in wanted else None

    return when


def _larger_mini_batch(case: Case) -> str | None:
    batch, mini = case.settings.int("data.train_batch_size"), case.settings.int(f"{ACTOR}.ppo_mini_batch_size")
    if mini <= batch or not case.settings.true(f"{ACTOR}.use_dynamic_bsz"):
        return None
    return f"the mini-batch ({mini} prompts) is larger than the batch ({batch} prompts)"


def _adapter_served(case: Case) -> int | None:
    served = case.engine.name == "sglang" and case.version != "0.4.1" and not case.settings.true(f"{MODEL}.lora.merge")
    return (case.lora or None) if served else None


def _eos_unheard(case: Case) -> bool:
    asked = case.place == "verl 0.9.1 sglang" and case.settings.true(f"{ROLLOUT}.ignore_eos")
    return asked and case.behaviour("ignore-eos") == "stops at the end token"


def _over_nodes(case: Case) -> str | None:
    per_node, tp = case.settings.int("trainer.n_gpus_per_node", 1), case.tensor_parallel
    return f"an engine of {tp} GPUs spans nodes of {per_node}" if tp > per_node and case.gpus % tp == 0 else None


def _old_reward_key(case: Case) -> str | None:
    old = [one for one in case.overrides if one.lstrip("+").startswith("custom_reward_function.")]
    return old[0].split("=")[0] if old and case.version != "0.4.1" else None


def _validation_in_step(case: Case) -> str | None:
    """Where validation is part of a step's time: before 0.6.0."""
    freq, steps = case.settings.int("trainer.test_freq", -1), int(case.workload["steps"])
    release = tuple(int(part) if part.isdigit() else 0 for part in case.version.split(".")[:2])
    if freq <= 0 or release >= (0, 6):
        return None
    return f"every {freq} steps is part of those steps' time ({max(1, steps // freq)} of {steps}, the last one always)"


def _unchunked(case: Case) -> str | None:
    limit = case.settings.number(f"{ROLLOUT}.max_num_batched_tokens")
    longest = case.settings.int(f"{ROLLOUT}.max_model_len") or case.longest
    off = case.settings.get(f"{ROLLOUT}.enable_chunked_prefill") is False
    if case.engine.name != "vllm" or case.version == "0.4.1" or not off or limit is None or limit >= longest:
        return None
    return f"{limit:g}"


def _overlapping(case: Case) -> str | None:
    mode = str(case.settings.get("trainer.v1.trainer_mode", "sync"))
    return mode if case.version != "0.4.1" and mode != "sync" else None


_RULES = (
    Rule(
        "one-completion",
        "odd",
        lambda case: (
            int(case.workload["num_generations"]) == 1 and case.settings.get("algorithm.adv_estimator") == "grpo"
        ),
        "GRPO with one completion per prompt (num_generations: 1)",
        "a group of one has mean 0 and deviation 1 in verl, so the advantage is the score itself: REINFORCE without a "
        "baseline. As quick to time, but it hardly learns",
        "verl {version}, trainer/ppo/core_algos.py, compute_grpo_outcome_advantage",
        "workload.num_generations: 4 or more, with batch_size counting all completions",
    ),
    Rule(
        "mini-batch",
        "odd",
        _larger_mini_batch,
        "{got}",
        "verl makes one optimizer step of the whole batch. 0.4.1 divides its gradient by the larger number: it is "
        "smaller by batch over mini-batch. 0.9.1 pads the batch with rows that are computed and thrown away",
        "verl 0.4.1, workers/actor/dp_actor.py:509; verl 0.9.1, workers/config/actor.py:225",
        "workload.mini_batch_size: at most batch_size, or null for the whole batch",
    ),
    Rule(
        "weights-in-half",
        "odd",
        _is(f"{ACTOR}.fsdp_config.model_dtype", "bf16", "bfloat16", "fp16", "float16"),
        "the optimizer holds the policy in {got} (actor.fsdp_config.model_dtype)",
        "with a small learning rate most updates are smaller than a rounding step of such weights and are lost: quick "
        "and small, but it hardly learns. verl's default is float32",
        "verl 0.4.1, workers/fsdp_workers.py:203; verl 0.9.1, trainer/config/engine/fsdp.yaml, model_dtype",
        f"{ACTOR}.fsdp_config.model_dtype: fp32 (it takes more memory; passes are in bfloat16 all the same)",
    ),
    Rule(
        "reward-key",
        "impossible",
        _old_reward_key,
        "{got} is set, which verl {version} does not read",
        "its default entry point never moves the old key to the new one: the run would train on verl's own reward for "
        "the data source, or fail for an unknown one, and say nothing of yours",
        "verl 0.9.1, trainer/ppo/reward.py:70; only fully_async_main.py:237 moves the key",
        "workload.rewards; or, in your own verl runs, reward.custom_reward_function.path and .name",
    ),
    Rule(
        "validation-in-step",
        "odd",
        _validation_in_step,
        "validation {got}",
        "verl {version} runs it inside timing_s/step (from 0.6.0 on it is outside); the report leaves these steps out "
        "of the timings, in all arms alike",
        f"{_TRAINER4}:1151; verl PR 3117",
        "workload.test_steps: 0 while timing",
        of_imported=False,
    ),
    Rule(
        "validation-first",
        "odd",
        _is("trainer.val_before_train", True),
        "a validation before the first step",
        "it costs time in every attempt, also after a resume, and no step's time shows it",
        f"{_TRAINER4}:930; verl 0.9.1, trainer/ppo/v1/trainer_base.py:439",
        "trainer.val_before_train: False",
        of_imported=False,
    ),
    Rule(
        "graphs-may-hang",
        "odd",
        _is(f"{ROLLOUT}.enforce_eager", False, version="0.4.1", engine="vllm"),
        "enforce_eager: False in verl 0.4.1 with vLLM",
        "users reported rollouts that hang with it and do not without; the watchdog stops such a run once and gives it "
        "up at its second hang. Not seen here: no GPU was at hand",
        "verl issue 1815",
        f"run this arm for a few steps first; where it hangs, {ROLLOUT}.enforce_eager: True and "
        f"{ROLLOUT}.free_cache_engine: True, or compare with verl 0.9.1",
    ),
    Rule(
        "batched-tokens",
        "odd",
        _unchunked,
        "chunked prefill is off, and max_num_batched_tokens ({got}) is less than the longest sequence",
        "verl {version} raises the limit by itself, and only says so in a warning",
        f"{_VLLM9}:1113",
        f"{ROLLOUT}.max_num_batched_tokens: prompt and response at their longest, or more",
    ),
    Rule(
        "rollout-mode",
        "odd",
        _is(f"{ROLLOUT}.mode", "async", version="0.4.1"),
        f"{ROLLOUT}.mode: async",
        "in 0.4.1 it is meant for chats of several turns: no phase reshard is timed, and vLLM is built otherwise",
        "verl 0.4.1, workers/rollout/vllm_rollout/vllm_async_server.py:165",
        f"{ROLLOUT}.mode: sync",
    ),
    Rule(
        "trainer-mode",
        "odd",
        _overlapping,
        "trainer.v1.trainer_mode: {got}",
        "generation and update overlap, so the phases of a step do not add up to it, and shares of it mean nothing",
        "verl 0.9.1, trainer/ppo/v1",
        "trainer.v1.trainer_mode: sync, to compare engines",
    ),
    Rule(
        "lora-sglang",
        "odd",
        _adapter_served,
        "LoRA (rank {got}) served by SGLang as an adapter",
        "every token pays for the adapter; vLLM and SGLang do so in different kernels",
        f"{_SGLANG9}:344",
        f"{MODEL}.lora.merge: True in all arms",
    ),
    Rule(
        "ignore-eos",
        "unequal",
        _eos_unheard,
        "ignore_eos: True does not reach SGLang",
        "it stops at the end token all the same, so the lengths are not the fixed ones that were asked for; vLLM's are",
        "verl 0.9.1, trainer/ppo/v1/agent_loop_tq.py:64: no ignore_eos among the sampling parameters",
        f"{ROLLOUT}.ignore_eos: False in all arms, and compare at equal work; or, beside it, {PREFERRED}",
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

# What verl 0.4.1 gives vLLM by name (vllm_rollout_spmd.py:149): a second time in engine_kwargs is a TypeError.
_GIVEN_TO_VLLM = frozenset(
    {
        *("model", "enable_sleep_mode", "tensor_parallel_size", "distributed_executor_backend", "dtype"),
        *("enforce_eager", "gpu_memory_utilization", "disable_custom_all_reduce", "skip_tokenizer_init"),
        *("max_model_len", "load_format", "disable_log_stats", "max_num_batched_tokens", "enable_chunked_prefill"),
        *("enable_prefix_caching", "trust_remote_code", "seed"),
    }
)


def _engine_kwargs(case: Case, variables: Variables) -> Iterator[Finding]:
    """Engine options of 0.4.1 that never arrive, or arrive twice."""
    if case.version != "0.4.1":
        return
    engine, section = case.engine.name, f"{ROLLOUT}.engine_kwargs.{case.engine.name}"
    # What the packaged configuration itself holds is not what somebody asked for.
    given = [key for key in case.settings.under(section) if f"{section}.{key}" in case.settings.given]
    twice = [key for key in given if engine == "vllm" and key.split(".")[0] in _GIVEN_TO_VLLM]
    if given and (engine == "sglang" or case.settings.get(f"{ROLLOUT}.mode") == "async"):
        yield Finding(
            "unequal",
            "engine-kwargs-ignored",
            (case.arm,),
            f"engine_kwargs.{engine} ({', '.join(given)}) has no effect",
            f"verl 0.4.1 never reads it for {case.engine.label}"
            + (" in its asynchronous mode" if engine == "vllm" else "")
            + ": the engine runs with its own defaults, whatever the configuration says",
            f"{_SGLANG4}:390" if engine == "sglang" else f"{_VLLM4.replace('rollout_spmd', 'async_server')}:165",
            "take it out, or compare with verl 0.9.1, which passes it on",
        )
    elif twice:
        yield Finding(
            "impossible",
            "engine-kwargs-twice",
            (case.arm,),
            f"engine_kwargs.vllm ({', '.join(twice)}) repeats what verl 0.4.1 passes by name",
            "Python ends with a TypeError: multiple values for one argument",
            f"{_VLLM4}:149",
            f"the setting of that name in {ROLLOUT}, where there is one; others cannot be changed in 0.4.1",
        )


def _attention_backend(case: Case, variables: Variables) -> Iterator[Finding]:
    """A kernel that the stack lacks, or a variable that is no longer read."""
    name = "VLLM_ATTENTION_BACKEND"
    wanted = case.env.get(name, variables.get(name, ("", ""))[0])
    packages = case.told.packages
    if case.engine.name != "vllm" or not wanted:
        return
    lacks = wanted == "FLASHINFER" and "vllm" in packages and "flashinfer-python" not in packages
    if case.version == "0.4.1" and lacks:
        yield Finding(
            "impossible",
            "attention-backend",
            (case.arm,),
            f"{name}=FLASHINFER, and stack {case.stack} has no flashinfer-python",
            "vLLM ends with an error when the engine is built",
            "vLLM 0.8.5, vllm/config.py:422; envs/<stack>/requirements.lock",
            f"take {name} out, or a stack of your own that pins flashinfer-python beside vLLM",
        )
    elif case.version == "0.9.1":
        yield Finding(
            "odd",
            "attention-backend",
            (case.arm,),
            f"{name}={wanted} has no effect",
            "vLLM 0.24.0 no longer reads it, and only says so in a warning",
            "vLLM 0.24.0, vllm/envs.py:2004, which has no such variable",
            f"+{ROLLOUT}.engine_kwargs.vllm.attention_backend: {wanted}",
        )


def _kernel_compiler(case: Case, variables: Variables) -> Iterator[Finding]:
    """A kernel that is compiled in every run, which the stack's own checks do not look for."""
    wanted = case.settings.get(f"{ROLLOUT}.engine_kwargs.vllm.attention_backend")
    if case.imported or case.engine.name != "vllm" or case.version != "0.9.1" or wanted != "FLASHINFER":
        return
    yield Finding(
        "odd",
        "kernel-compiler",
        (case.arm,),
        "attention_backend FLASHINFER compiles its kernels in the run, with nvcc of CUDA 13",
        f"stack {case.stack} does not ask for it: vLLM's own kernels need no compiler. Without it the engine ends when "
        "it is built",
        "envs/verl09-vllm/stack.yaml: run_needs; docs/verl-stacks.md",
        "nvcc on the compute nodes (`module load cuda/13.0` in the profile's setup.sh, or the stack's conda layer)",
    )


def _cache(case: Case, variables: Variables) -> Iterator[Finding]:
    """A cache that holds no sequence at its full length."""
    estimate = estimate_of(case)
    if case.imported or not isinstance(estimate, MemoryEstimate) or (estimate.kv_tokens or 0) >= case.longest:
        return
    weights, share = estimate.rollout[0].gib, case.settings.number(f"{ROLLOUT}.gpu_memory_utilization") or 0.0
    yield Finding(
        "impossible" if weights >= share * estimate.gib else "odd",
        "memory-cache",
        (case.arm,),
        f"the engine's cache has room for {estimate.kv_tokens} tokens, by estimate, and one sequence may have "
        f"{case.longest}",
        f"gpu_memory_utilization {share:g} of {estimate.gib:.0f} GiB, less {weights:.1f} GiB of weights",
        "docs/preflight.md#memory: the estimate, and what of it is assumed",
        f"{ROLLOUT}.gpu_memory_utilization: more; or {ROLLOUT}.tensor_model_parallel_size: more",
    )


CHECKS: tuple[Check, ...] = (_refused, *_RULES, _engine_kwargs, _attention_backend, _kernel_compiler, _cache)

_CONTEXT_CHECKED = {
    "verl 0.4.1 vllm": f"{_VLLM4}:124",
    "verl 0.4.1 sglang": f"{_SGLANG4}:358",
    "verl 0.9.1 vllm": f"{_VLLM9}:1107 and :593",
    "verl 0.9.1 sglang": f"{_SGLANG9}:170 and :588",
}


def context(case: Case, model: ModelFacts) -> tuple[bool, str, str]:
    """What happens to sequences beyond the model's context: whether it is refused, why, and the source."""
    source = _CONTEXT_CHECKED.get(case.place, "the check of max_model_len")
    if case.place == "verl 0.4.1 vllm" and model.rope_scaling:
        why = "verl 0.4.1 leaves the check out for a model with rope_scaling; what comes after is up to the model"
        return False, why, source
    if case.version != "0.4.1" and case.settings.int(f"{ROLLOUT}.max_model_len") <= model.context:
        end = f"{case.engine.label} stops at the model's end: responses are cut short"
        return False, f"verl {case.version} says nothing, and {end}", source
    return True, f"{case.engine.label} or verl refuses it when the engine is built", source
