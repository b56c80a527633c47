"""Steps as NeMo-RL, OpenRLHF and slime print them, with figures of public runs where there are any."""

# The block of NeMo-RL that a public guide to it on Google Kubernetes Engine shows (8 H100, Qwen2.5-1.5B, GSM8K).
NEMO = """
📊 Training Results:
  • Loss: 0.0000
  • Generation KL Error: 0.0010
  • Avg Reward: 0.0000
  • Mean Generation Length: 201.2197

⏱️  Timing:
  • Total step time: 35.70s
  • policy_training: 10.97s (30.7%)
  • checkpointing: 6.49s (18.2%)
  • generation: 4.95s (13.9%)
  • policy_and_reference_logprobs: 3.14s (8.8%)
  • prepare_for_generation/total: 2.20s (6.2%)
  • logprob_inference_prep: 0.85s (2.4%)
  • training_prep: 0.75s (2.1%)
  • prepare_for_generation/transfer_and_update_weights: 0.60s (1.7%)
  • data_processing: 0.09s (0.2%)
  • reward_calculation: 0.01s (0.0%)

🔍 Performance Metrics:
  • Mean Total Tokens per Sample: 204.01
  • Throughputs (per GPU):
    - E2E (Samples/sec/gpu): 3.59
"""
# NVIDIA-NeMo/RL, pull request 1052: the asynchronous loop.
NEMO_ASYNC = """
📊 Training Results:
  • Loss: 0.1032
  • Avg Reward: 0.3486
  • Buffer Size: 64
  • Avg Trajectory Age: 1.00 steps

⏱️  Timing:
  • Total step time: 66.55s
  • exposed_generation: 32.52s (48.9%)
  • policy_training: 25.05s (37.6%)
  • policy_and_reference_logprobs: 4.78s (7.2%)
  • buffer_sampling: 1.38s (2.1%)
  • logprob_inference_prep: 1.34s (2.0%)
  • training_prep: 1.06s (1.6%)
  • data_processing: 0.23s (0.4%)
  • weight_sync: 0.13s (0.2%)
"""
# Of a public page on slime's metrics; THUDM/slime, pull request 1102 shows the same names.
SLIME = {
    "perf/sleep_time": 5.323812961578369,
    "perf/update_weights_time": 2.5300958156585693,
    "perf/wake_up_time": 2.575822114944458,
    "perf/data_preprocess_time": 0.056499481201171875,
    "perf/train_wait_time": 347.60552525520325,
    "perf/log_probs_time": 17.18164873123169,
    "perf/actor_train_time": 46.9120090007782,
    "perf/train_time": 64.71815633773804,
    "perf/log_probs_tflops": 24.6083648658699,
    "perf/actor_train_tok_per_s": 7498.93273584093,
    "perf/step_time": 412.3236815929413,
    "perf/wait_time_ratio": 0.8430404092054314,
}
SLIME_ROLLOUT = {"rollout/raw_reward": 0.375, "rollout/response_lengths": 12245.5, "rollout/truncated": 0.03125}
# No public console with OpenRLHF's timers was found: these are its names and order, by its source.
OPENRLHF = {
    "policy_loss": 0.0125,
    "actor_lr": 1e-06,
    "reward": 0.5,
    "timing/make_experience": 4.25,
    "timing/ppo_train": 16.5,
    "timing/broadcast": 1.75,
    "rollout/response_length_mean": 512.25,
    "timing/generation": 31.5,
    "timing/step_total": 54.0,
}

# NeMo-RL's own names; `prepare_for_generation/transfer_and_update_weights` has a slash.
OWN_TREE = """step,phase,parent,category,seconds
1,total_step_time,,,20.0
1,generation,total_step_time,generation,12.0
1,refit/weights,total_step_time,weight sync,2.5
1,policy_training,total_step_time,loss+backward,4.0
1,backward,policy_training,loss+backward,3.0
1,mean_gen_tokens,-,,812.25
2,total_step_time,,,21.0
2,generation,total_step_time,generation,13.0
2,policy_training,total_step_time,loss+backward,4.5
"""
OWN_TREE_HEAD = "step,phase,parent,seconds\n"


def nemo_block(step, of=100, block=NEMO):
    """One step of NeMo-RL's console."""
    return f"\n{'=' * 25} Step {step}/{of} {'=' * 25}\n▶ Preparing batch...\n{block}"


def openrlhf_line(step, **more):
    """One step of OpenRLHF's console."""
    return f"(PPOTrainer pid=77) INFO 03-18 10:00:00 ppo_trainer.py:541] ✨ Global step {step}: {OPENRLHF | more}\n"


def slime_lines(rollout, rollout_s=330.5):
    """One step of slime's console: of the rollout manager, then of the trainer."""
    manager = f"{{'rollout/response_len/max': 16384, 'perf/rollout_time': np.float64({rollout_s})}}"
    stamp = "[2026-01-05 12:20:29]"
    return (
        f"(RolloutManager pid=38) {stamp} rollout.py:1227 - perf {rollout}: {manager}\n"
        f"(MegatronTrainRayActor pid=39) {stamp} data.py:209 - rollout {rollout}: {SLIME_ROLLOUT}\n"
        f"(MegatronTrainRayActor pid=39) {stamp} model.py:660 - step {rollout}: {{'train/loss': 0.1}}\n"
        f"(MegatronTrainRayActor pid=39) {stamp} train_metric_utils.py:44 - perf {rollout}: {SLIME}\n"
    )
