#!/bin/bash
# another engine: actor_rollout_ref.rollout.name
nohup python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm > train.log 2>&1 &
PID=$!
wait $PID
