#!/bin/bash
set -euo pipefail
export HF_HUB_OFFLINE=1
trl grpo --config grpo.yaml --temperature 0.9 --output_dir out
