# Sourced in every training job, on its first node, before the trainer starts: what this site's nodes need.
# What fails here ends the job, with its output in the message: a run must not train on half an environment.
set -e

# Examples; nothing is needed where the stacks bring everything along.
#
# module load cuda/12.4
# export NCCL_SOCKET_IFNAME=ib0
# export NCCL_IB_HCA=mlx5
# export https_proxy=http://proxy.example:3128
