"""Lists the names inside verl that our driver uses (read in verl 0.4.1 and 0.9.1).

The driver hooks the class whose loop runs: V1's `PPOTrainer`, or `RayPPOTrainer`. Both have the same methods.
"""

from node.hooks import Hook

_MAIN = "verl.trainer.main_ppo"
_LEGACY = "verl.trainer.ppo.ray_trainer"
_V1 = "verl.trainer.ppo.v1.trainer_base"
_TRACKING = "verl.utils.tracking"
_ROLLOUT = "verl.workers.rollout"

RUN = Hook(_MAIN, "run_ppo", "(config, ...)", "starts Ray, then its TaskRunner as an actor, and waits")
RUNNER_V1 = Hook(_MAIN, "TaskRunnerV1", "", "a Ray actor class; its run(config) trains", since="0.9")
RUNNER = Hook("verl.trainer.main_ppo_v0", "TaskRunner", "", "as TaskRunnerV1, of the legacy loop", since="0.9")
RUNNER_0_4 = Hook(_MAIN, "TaskRunner", "", "as TaskRunnerV1; run_ppo uses its module's class", until="0.8")
SET_DEVICE = Hook(_MAIN, "auto_set_device", "", "called in verl's main", since="0.7")
VALIDATE = Hook(_MAIN, "validate_config", "", "called in verl's main", since="0.6")
NEED_REFERENCE = Hook(_MAIN, "need_reference_policy", "", "an argument of validate_config", since="0.6")
NEED_CRITIC = Hook(_MAIN, "need_critic", "", "an argument of validate_config", since="0.6")
AS_DATACLASS = Hook(
    "verl.utils.config",
    "omega_conf_to_dataclass",
    "(config, dataclass_type)",
    "makes a section's class, which checks its fields",
)

TRAINER = Hook(_LEGACY, "RayPPOTrainer", "", "the legacy loop's trainer")
FIT = Hook(_LEGACY, "RayPPOTrainer.fit", "(self)", "the loop, after the workers have started")
CHECK = Hook(
    _LEGACY, "RayPPOTrainer._validate_config", "(self)", "asserts on `config` before workers start", until="0.5"
)
SAVE = Hook(_LEGACY, "RayPPOTrainer._save_checkpoint", "(self)", "saves all of global_steps")
LOAD = Hook(_LEGACY, "RayPPOTrainer._load_checkpoint", "(self)", "sets global_steps and the data loader's place")

TRAINER_V1 = Hook(_V1, "PPOTrainer", "", "the base of V1's trainers", since="0.9")
FIT_V1 = Hook(_V1, "PPOTrainer.fit", "(self, agent_loop_manager)", "as RayPPOTrainer's", since="0.9")
SAVE_V1 = Hook(_V1, "PPOTrainer._save_checkpoint", "(self)", "as RayPPOTrainer's", since="0.9")
LOAD_V1 = Hook(_V1, "PPOTrainer._load_checkpoint", "(self)", "as RayPPOTrainer's", since="0.9")
METRICS_V1 = Hook(
    _V1,
    "PPOTrainer._compute_metrics",
    "(self, batch, metrics, timing_raw, global_steps, epoch)",
    "the batch has keys, tags and partition_id",
    since="0.9",
)
END_DUMPS_V1 = Hook(_V1, "PPOTrainer._shutdown_dump_executor", "(self)", "writes pending dumps", since="0.9")
CHECKPOINTS_V1 = Hook(_V1, "PPOTrainer.checkpoint_manager", "", "sleep_replicas() frees the engine", since="0.9")
BUFFER_V1 = Hook(
    _V1, "PPOTrainer.replay_buffer", "", "waits `poll_interval` seconds between two looks at the queue", since="0.9"
)
QUEUE = Hook(_V1, "tq", "", "kv_batch_get reads fields of the transfer queue", since="0.9")

SERVERS = Hook(_V1, "PPOTrainer.llm_server_manager", "", "server_handles: the actors that have engines", since="0.9")
SERVERS_0_4 = Hook(_LEGACY, "RayPPOTrainer.async_rollout_manager", "", "async_llm_servers: those actors", until="0.5")
WORKERS = Hook(_LEGACY, "RayPPOTrainer.actor_rollout_wg", "", "workers: actors with a worker_dict of workers")
ENGINE = Hook(f"{_ROLLOUT}.vllm_rollout.vllm_async_server", "vLLMHttpServer.engine", "", "vLLM's AsyncLLM", since="0.9")
ENGINE_0_4 = Hook(
    f"{_ROLLOUT}.vllm_rollout.vllm_rollout_spmd", "vLLMRollout.inference_engine", "", "vLLM's LLM", until="0.5"
)
SGLANG_0_4 = Hook(
    f"{_ROLLOUT}.sglang_rollout.sglang_rollout",
    "SGLangRollout._engine",
    "",
    "SGLang's Engine; None in the other processes of its GPUs",
    until="0.5",
)
SGLANG_ADDRESS = Hook(
    f"{_ROLLOUT}.sglang_rollout.async_sglang_server",
    "SGLangHttpServer.get_server_address",
    "(self)",
    "host and port of SGLang's own server, without a key",
    since="0.9",
)

LENGTHS = Hook(
    "verl.trainer.ppo.metric_utils", "_compute_response_info", "(batch)", "prompt_length and response_length"
)
OFF_POLICY = Hook(
    "verl.trainer.ppo.rollout_corr_helper",
    "compute_offpolicy_metrics",
    "(old_log_prob, rollout_log_prob, response_mask)",
    "called with keywords once per step, unless old_log_prob is the engine's own (bypass_mode)",
    since="0.7",
)
START_TRACKING = Hook(
    _TRACKING, "Tracking.__init__", "(self, project_name, experiment_name, default_backend, config)", "sets `logger`"
)
BACKENDS = Hook(_TRACKING, "Tracking.logger", "", "backend's name -> object with log()")
LOG = Hook(
    _TRACKING,
    "Tracking.log",
    "(self, data, step, backend)",
    "once per training step, with training/global_step, at its end",
)
