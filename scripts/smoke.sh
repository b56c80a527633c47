#!/usr/bin/env bash
# A few training steps of every engine: smoke.sh EXPERIMENT STACKS ARMS, STACKS with % for an arm's name (`make gpu-smoke`).
# From the environment:
#   ARMS          only these arms, as in "vllm"
#   WHEEL, SHA256 wheels in place of source builds and their hashes, in the same order
set -euo pipefail
if [ -n "${STACK_PYTHON:-}" ]; then
  echo "error: STACK_PYTHON is not used any more (got $STACK_PYTHON); unset it, record that environment with" >&2
  echo "python -m workflow.stacks found NAME --python $STACK_PYTHON, and name it as an arm's stack (docs/stacks.md)" >&2
  exit 1
fi
experiment=$1 stacks=$2 arms=${ARMS:-$3}
config=experiments/$experiment.yaml
if [ -n "${ARMS:-}" ]; then
  config=.cache/$experiment-${ARMS// /-}.yaml
  # shellcheck disable=SC2086 # words
  rolloutbench only "experiments/$experiment.yaml" $ARMS --out "$config"
fi

wheels=()
for wheel in ${WHEEL:-}; do wheels+=(--wheel "$wheel"); done
for sha256 in ${SHA256:-}; do wheels+=(--sha256 "$sha256"); done
for arm in $arms; do
  stack=${stacks/\%/$arm}
  if [ ${#wheels[@]} -gt 0 ]; then
    python -m workflow.stacks build "$stack" "${wheels[@]}"
  fi
done
snakemake --profile profiles/local --configfile "$config" --set-threads "train=$(nproc)" --logger calm >/dev/null
rolloutbench verdict "$config"
