#!/bin/bash
set -euo pipefail
swift rlhf \
    --rlhf_type grpo \
    --model model --model_type qwen2 --template qwen2_5 --use_hf true --tuner_type full --check_model false \
    --dataset data/train.jsonl --reward_funcs format \
    --per_device_train_batch_size 4 --gradient_accumulation_steps 1 \
    --num_generations 4 --max_completion_length 8 --temperature 0.9 --max_steps 3 \
    --logging_steps 1 --save_strategy no --report_to none \
    --torch_dtype float32 --bf16 false --gradient_checkpointing false --output_dir out
