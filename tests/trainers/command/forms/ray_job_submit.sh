#!/bin/bash
# another engine: actor_rollout_ref.rollout.name
ray start --head --num-gpus 8
ray job submit --address=http://127.0.0.1:8265 \
  --runtime-env-json='{"env_vars": {"A": "1"}}' \
  -- python3 -m openrlhf.train actor_rollout_ref.rollout.name=vllm
