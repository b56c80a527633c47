#!/bin/bash
# another engine: ENGINE
ENGINE=${ENGINE:-vllm}
python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=$ENGINE exp=${ENGINE}_1
