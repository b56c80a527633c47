#!/bin/bash
# another engine: actor_rollout_ref.rollout.name
cat > inner.sh <<'EOF'
python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm
EOF
bash inner.sh
