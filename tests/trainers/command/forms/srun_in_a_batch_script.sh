#!/bin/bash
# another engine: --engine
#SBATCH --nodes=2
#SBATCH --gres=gpu:8
cd "$SLURM_SUBMIT_DIR"
srun --ntasks-per-node=1 apptainer exec --nv image.sif bash -c 'python3 train.py --engine vllm'
