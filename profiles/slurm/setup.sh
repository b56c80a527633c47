# Sourced in every training job, on its first node, before the trainer starts: what this site's nodes need.
# A command that fails here ends the job, with the script's last lines in the message: a run must not train on half an
# environment. Where that is no harm, add `|| true`. It is bash, and not a login shell: a site whose batch scripts have
# no `module` has a file in /etc/profile.d to source first. Modules before 4.0 fail without an exit code; `command -v
# nvcc` below them notices.

# Examples; nothing is needed where the stacks bring everything along.
#
# module load cuda/12.4
# source "$HOME/miniforge3/etc/profile.d/conda.sh"  # `conda activate` needs it
# export NCCL_SOCKET_IFNAME=ib0
# export NCCL_IB_HCA=mlx5
# export https_proxy=http://proxy.example:3128
# A disk of the node for compiled kernels that outlives the job; it has to lock files and to run code from them.
# export ROLLOUTBENCH_CACHE_DIR=/scratch/$USER/cache
