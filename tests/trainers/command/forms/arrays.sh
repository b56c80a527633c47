#!/bin/bash
# another engine: actor_rollout_ref.rollout.name
DATA=(data.train=a data.val=b)
ROLLOUT=(
  actor_rollout_ref.rollout.name=vllm  # engine
  x=1
)
python3 -m verl.trainer.main_ppo "${DATA[@]}" "${ROLLOUT[@]}" "$@"
