#!/bin/bash
# another engine: --rollout
torchrun --nproc_per_node=8 --master_port=$((29500 + RANDOM % 10)) train.py --rollout vllm
