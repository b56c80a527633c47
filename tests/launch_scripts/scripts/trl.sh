#!/bin/bash
# An emoji reward and a length, with an adapter's model of 1.5 billion parameters.
cat > grpo.yaml <<'EOF'
model_name_or_path: ./models/tinyswallow-1.5b
attn_implementation: flash_attention_2
dataset_name: ./data/wiki-qa.jsonl
reward_funcs: [rewards.emoji_reward, rewards.length_reward]
reward_weights: [1.0, 0.5]
num_generations: 8
temperature: 0.9
max_prompt_length: 256
max_completion_length: 256
learning_rate: 1e-6
beta: 0.04
per_device_train_batch_size: 8
gradient_accumulation_steps: 2
warmup_steps: 5
lr_scheduler_type: constant_with_warmup
use_vllm: true
vllm_mode: colocate
vllm_gpu_memory_utilization: 0.4
output_dir: out
logging_steps: 1
report_to: [tensorboard]
EOF
accelerate launch --num_processes 4 -m trl.scripts.grpo --config grpo.yaml --max_steps 60 --epsilon 0.3 --seed 7
