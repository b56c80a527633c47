#!/usr/bin/env bash
# Runs a stage of the GPU kit on a machine without a network: gpu_kit.sh STAGE (docs/gpu.md). PYTHON names another
# interpreter than python3, OUT the folder of the results; --cpu rehearses without a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" -m gpu_kit.target "$@"
