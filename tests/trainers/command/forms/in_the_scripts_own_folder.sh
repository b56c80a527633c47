#!/bin/bash
# another engine: --engine
SCRIPT_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$(dirname $0)/.."
source "$SCRIPT_DIR/model.sh"
swift rlhf --rlhf_type grpo --use_vllm true --engine vllm $MODEL_ARGS
