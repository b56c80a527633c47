#!/bin/bash
#SBATCH --job-name=grpo-test
#SBATCH -p P08
#SBATCH --nodelist=gpu73
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=180
#SBATCH --time=20:00:00
#SBATCH --output=logs/slurm-%j.out

module reset
module load nccl/2.22.3
module load hpcx/2.18.1-gcc-cuda12/hpcx-mt
source /apps/miniconda3/etc/profile.d/conda.sh
export CONDA_PATH="~/conda_env_sglang124"
conda deactivate
conda activate $CONDA_PATH
mkdir -p ~/training/grpo
cd ~/training/grpo
export NCCL_SOCKET_IFNAME=enp25s0np0
export NVTE_FUSED_ATTN=1
export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7
unset ROCR_VISIBLE_DEVICES
ulimit -v unlimited
export WANDB_ENTITY="a-team"
export CUDA_LAUNCH_BLOCKING=1
export SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK=True  # as SGLang advises

PYTHONUNBUFFERED=1 python -m verl.trainer.main_ppo \
{} 2>&1 | tee verl_demo.log
