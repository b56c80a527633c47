#!/bin/bash
# another engine: actor_rollout_ref.rollout.name
train() {
  local name=$1; shift
  python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm exp=$name "$@"
}
main() { train first; }
main "$@"
