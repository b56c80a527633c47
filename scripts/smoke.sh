#!/usr/bin/env bash
# A few training steps of every engine: smoke.sh EXPERIMENT STACKS ARMS, STACKS with % for an arm's name (`make gpu-smoke`).
# From the environment:
#   ARMS          only these arms, as in "vllm"
#   STACK_PYTHON  an interpreter that is there, registered as each arm's stack; with it
#                 ACCEPT, OVERLAY, LEAVE_OUT, FIND_LINKS: options of `python -m workflow.stacks register`
#   WHEEL, SHA256 wheels in place of source builds and their hashes, in the same order
set -euo pipefail
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
options=()
[ -z "${ACCEPT:-}" ] || options+=(--accept "$ACCEPT")
[ -z "${OVERLAY:-}" ] || options+=(--overlay "$OVERLAY")
[ -z "${LEAVE_OUT:-}" ] || options+=(--leave-out "$LEAVE_OUT")
[ -z "${FIND_LINKS:-}" ] || options+=(--find-links "$FIND_LINKS")
if [ -z "${STACK_PYTHON:-}" ] && [ ${#options[@]} -gt 0 ]; then
  echo "error: ACCEPT, OVERLAY, LEAVE_OUT and FIND_LINKS are about a registered interpreter; give STACK_PYTHON=/path/to/python, too" >&2
  exit 2
fi
for arm in $arms; do
  stack=${stacks/\%/$arm}
  if [ -n "${STACK_PYTHON:-}" ]; then
    python -m workflow.stacks register "$stack" --python "$STACK_PYTHON" "${options[@]}" "${wheels[@]}"
  elif [ ${#wheels[@]} -gt 0 ]; then
    python -m workflow.stacks build "$stack" "${wheels[@]}"
  fi
done
snakemake --profile profiles/local --configfile "$config" --set-threads "train=$(nproc)" --logger calm >/dev/null
rolloutbench verdict "$config"
