#!/bin/bash
# another engine: actor_rollout_ref.rollout.name
set -x
python3 -m verl.trainer.main_ppo \
  trainer.n=1 \
  actor_rollout_ref.rollout.name=vllm $@
