#!/bin/bash
#SBATCH --partition=h100
#SBATCH -N 2 --gpus-per-node=h100:8
#SBATCH --cpus-per-task=96
#SBATCH --mem=900G
#SBATCH -t 12:00:00
#SBATCH --array=0-3
#SBATCH --exclusive
module load cuda/13.0
export NCCL_IB_HCA=mlx5 HF_TOKEN=hf_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
export PATH=$HOME/tools/bin:$PATH
ENGINE=sglang
ARGS=(
    actor_rollout_ref.rollout.name=$ENGINE
    actor_rollout_ref.rollout.n=8
    "+actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=fa3"
)
srun --overlap python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \
    data.train_files=data/train.parquet data.val_files=data/test.parquet \
    data.train_batch_size=128 data.max_prompt_length=1024 data.max_response_length=4096 \
    actor_rollout_ref.model.path=some-team/policy-8b \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \
    actor_rollout_ref.actor.use_no_such_setting=1 \
    actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_mini_batch_size=128 actor_rollout_ref.actor.optim.lr=2e-6 \
    reward.custom_reward_function.path=rewards/score.py \
    reward.custom_reward_function.name=score \
    +reward.custom_reward_function.reward_kwargs.scale=2 \
    trainer.nnodes=$SLURM_JOB_NUM_NODES trainer.n_gpus_per_node=8 \
    trainer.total_training_steps=200 trainer.save_freq=50 trainer.test_freq=-1 \
    "${ARGS[@]}" > out.log 2>&1
