"""verl 0.9.1's loops: what each of them asserts, the GPUs that they take, and their timers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from trainers.timers.tree import Phase, TimerTree
from trainers.verl import timers
from trainers.verl.driver.overrides import ACTOR, MODEL, ROLLOUT
from trainers.verl.releases import shared
from trainers.verl.releases.release import Assertion, FlatConfig, RefusedSetting

MODE = "trainer.v1.trainer_mode"
SEPARATE = "separate_async"
_BASE, _OWN = "trainer/ppo/v1/trainer_base.py", "trainer/ppo/v1/trainer_separate_async.py"
_REWARD, _GROUPS = "reward.reward_model", "algorithm.filter_groups"
_ENGINES = f"{ROLLOUT}.n_gpus_per_node"
_Condition = Callable[[FlatConfig], object]


def loop_of(config: FlatConfig) -> str:
    """The loop that its settings select: of trainer/ppo/v1, or `legacy`."""
    return str(config.get(MODE, "sync")) if config.get("trainer.use_v1", True) else "legacy"


# Pools of GPUs beside the trainer's: their name, whether a run has them, their section, and where verl makes them.
_POOLS: tuple[tuple[str, _Condition, str, str], ...] = (
    ("engines", lambda config: loop_of(config) == SEPARATE, ROLLOUT, f"{_OWN}:64"),
    ("reward model", lambda config: config.get(f"{_REWARD}.enable_resource_pool"), _REWARD, f"{_BASE}:823"),
    ("teachers", lambda config: config.get("distillation.enabled"), "distillation", f"{_BASE}:838"),
)


def pools(config: FlatConfig) -> dict[str, int]:
    """The GPUs of each pool beside the trainer's."""
    return {name: _gpus(config, section) for name, has, section, _ in _POOLS if has(config)}


def _gpus(config: FlatConfig, section: str) -> int:
    return int(config.get(f"{section}.nnodes", 0)) * int(config.get(f"{section}.n_gpus_per_node", 0))


def _beside(config: FlatConfig) -> Iterator[RefusedSetting]:
    """Pools that need more GPUs than the job has: it requests the trainer's."""
    total = config.gpus + sum(pools(config).values())
    for name, has, section, place in _POOLS:
        if has(config):
            yield RefusedSetting(
                "setting-gpus-beside",
                f"{section}.nnodes x n_gpus_per_node asks for {_gpus(config, section)} GPUs ({name}) beside the "
                f"trainer's {config.gpus}, and a job has only the trainer's (got {total} in all)",
                "verl {version} ends with an error, or waits for GPUs that the job does not have",
                f"{MODE}: sync or colocate_async; or train it elsewhere and import the run"
                if section == ROLLOUT
                else f"remove {section}",
                f"verl 0.9.1, {place}",
            )


def _parts_of_a_step(config: FlatConfig) -> object:
    parts = config.count(f"trainer.v1.{loop_of(config)}.parameter_sync_step")
    return parts if _V1(config) and config.count("data.train_batch_size") % parts else None


def _replica(config: FlatConfig) -> int:
    return config.count(f"{ROLLOUT}.tensor_model_parallel_size") * config.count(f"{ROLLOUT}.data_parallel_size")


def _replica_over_nodes(config: FlatConfig) -> object:
    replica = _replica(config)
    per_node = int(config.get(_ENGINES, replica))
    return per_node if per_node < 1 or replica % min(per_node, replica) else None


def _of_other_programs(config: FlatConfig) -> str | None:
    """Settings that only verl's experimental programs read; the job starts trainer/main_ppo.py."""
    return next((key for key in config.values if key.startswith(("async_training.", "rollout."))), None)


def _always(_: FlatConfig) -> bool:
    return True


def _in(*loops: str) -> _Condition:
    return lambda config: loop_of(config) in loops


def _with(key: str, value: object = True) -> _Condition:
    return lambda config: config.get(key) == value


def _whole(value: Any) -> bool:
    return isinstance(value, int) and value > 0


def _needs(
    key: str, must: str, holds: Callable[[Any], object], source: str, change: str = "", when: _Condition = _always
) -> Assertion:
    """That a setting holds, where a condition is met."""

    def broken(config: FlatConfig) -> object:
        value = config.values.get(key)
        return repr(value) if key in config.values and when(config) and not holds(value) else None

    return Assertion(broken, f"{key} must be {must}", source, f"{key}: {change}" if change else f"remove {key}")


def _one_of(key: str, allowed: tuple[object, ...], source: str, when: _Condition = _always) -> Assertion:
    return _needs(
        key,
        " or ".join("null" if one is None else str(one) for one in allowed),
        allowed.__contains__,
        source,
        when=when,
    )


_V1 = _in("sync", "colocate_async", SEPARATE)
_BACKEND, _AGENT = f"{ROLLOUT}.checkpoint_engine", f"{ROLLOUT}.agent"
_ASSERTIONS = (
    Assertion(
        _of_other_programs,
        "async_training and rollout must not be set: only one_step_off_policy and fully_async_policy read them, which "
        "a job does not start",
        "experimental/one_step_off_policy/main_ppo.py, experimental/fully_async_policy/fully_async_main.py",
        "remove it; or train it elsewhere and import the run",
    ),
    _one_of(
        f"{_BACKEND}.backend",
        ("naive", "nccl", "nixl", "delta_sharded", "kimi_ckpt_engine", "mooncake"),
        "checkpoint_engine/base.py:98",
        _with(f"{_BACKEND}.custom_backend_module", None),
    ),
    Assertion(
        _parts_of_a_step,
        "data.train_batch_size must be a multiple of parameter_sync_step",
        f"{_BASE}:535",
        "remove parameter_sync_step",
    ),
    _needs(
        f"{_GROUPS}.metric",
        "set where filter_groups.enable is true",
        bool,
        f"{_BASE}:196",
        "reward",
        lambda config: _V1(config) and config.get(f"{_GROUPS}.enable"),
    ),
    _needs(
        f"{_GROUPS}.max_inflight_gen_batches",
        "a whole number of at least 1",
        _whole,
        "trainer/ppo/v1/replay_buffer.py:196",
        "1",
        lambda config: loop_of(config) == "sync" and config.get(f"{_GROUPS}.enable"),
    ),
    _needs(
        "trainer.v1.sampler.max_off_policy_threshold",
        "null or a whole number of at least 1",
        lambda value: value is None or _whole(value),
        "trainer/ppo/v1/replay_buffer.py:166",
        when=_V1,
    ),
    _needs("actor_rollout_ref.hybrid_engine", "true", bool, "trainer/ppo/ray_trainer.py:334", when=_in("legacy")),
    Assertion(
        _replica_over_nodes,
        f"{_ENGINES} must divide an engine's GPUs",
        "workers/rollout/replica.py:114",
        f"remove {_ENGINES}",
    ),
    _one_of(
        f"{ROLLOUT}.quantization",
        (None, "fp8", "torchao"),
        "workers/rollout/vllm_rollout/vllm_async_server.py:1242",
        _with(f"{ROLLOUT}.name", "vllm"),
    ),
    _one_of(
        f"{ROLLOUT}.quantization",
        (None, "fp8"),
        "workers/rollout/sglang_rollout/async_sglang_server.py:312",
        _with(f"{ROLLOUT}.name", "sglang"),
    ),
    _one_of(
        f"{_AGENT}.default_agent_loop",
        ("single_turn_agent", "tool_agent"),
        "experimental/agent_loop/agent_loop.py:678",
        _with(f"{_AGENT}.agent_loop_config_path", None),
    ),
)


def problems(config: FlatConfig) -> Iterator[RefusedSetting]:
    """What 0.9.1 refuses and other releases accept."""
    yield from _beside(config)
    for assertion in _ASSERTIONS:
        yield from assertion.refusals(config, "0.9.1")
    packs = config.get(f"{ROLLOUT}.log_prob_use_dynamic_bsz")
    if packs is not None and bool(packs) != config.dynamic:
        yield shared.dynamic_tokens(
            f"{ROLLOUT}.log_prob_use_dynamic_bsz must be as {ACTOR}.use_dynamic_bsz in verl 0.9.1 (got {bool(packs)})",
            source="verl 0.9.1, workers/engine_workers.py:616",
        )
    # workers/rollout/vllm_rollout/utils.py:get_vllm_max_lora_rank; a merged adapter does not reach vLLM.
    rank = config.get(f"{MODEL}.lora_rank", 0)
    if rank > 512 and config.get(f"{ROLLOUT}.name") == "vllm" and not config.get(f"{MODEL}.lora.merge"):
        text = f"{MODEL}.lora_rank must be at most 512 with vLLM, unless {MODEL}.lora.merge is true (got {rank})"
        yield RefusedSetting("lora-weights", text)


_V1_STEP = Phase(
    "step",
    "Step",
    "Wall clock of one training step on the driver; its residual contains the dispatch of prompts and the balancing of "
    "the batch.",
    "other",
    ("step",),
)
_V1_GEN = (
    "The driver waits until the replay buffer has the batch, which it checks every 2 s, then puts the engines to "
    "sleep. Rewards by rule are computed inside."
)


def _v1_loop(files: str, more: str = "", mode: str = "") -> TimerTree:
    reward = timers.reward("Only with a reward model on the training GPUs.")
    phases = (_V1_STEP, timers.gen(_V1_GEN + more), reward, *timers.TRAINING, *timers.AFTER_WEIGHTS)
    return timers.tree_of("0.9.1", f"verl 0.9.1 trainer/ppo/v1/trainer_base.py {files}", *phases, mode=mode)


TREES = (
    _v1_loop("(fit, _step_once) and trainer_sync.py"),
    _v1_loop(
        "and trainer_colocate_async.py",
        " Responses may have begun in an earlier step: its seconds and its tokens are not of the same work.",
        mode="colocate_async",
    ),
    timers.tree_of(
        "0.9.1",
        "verl 0.9.1 trainer/ppo/ray_trainer.py (fit, use_v1=False), experimental/agent_loop/agent_loop.py",
        timers.STEP,
        timers.gen(
            "Driver wall clock; its own time is what the slowest sample does not explain: waiting for an engine, "
            "putting it to sleep, moving the batch."
        ),
        *(*timers.SLOWEST, timers.reward("Collects the scores; a reward model scores here."), *timers.TRAINING),
        *(*timers.AFTER_WEIGHTS[:2], timers.DUMP, *timers.AFTER_WEIGHTS[2:]),
        mode="legacy",
        not_summed=(*timers.AGENT_LOOP, *timers.PROFILES),
    ),
    timers.overlapping("0.9.1", "separate_async", "trainer/ppo/v1/trainer_separate_async.py"),
    timers.overlapping("0.9.1", "one_step_off", "experimental/one_step_off_policy/ray_trainer.py"),
    timers.overlapping("0.9.1", "fully_async", "experimental/fully_async_policy/fully_async_trainer.py"),
)
