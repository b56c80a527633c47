#!/bin/bash
# another engine: 1
case "${1:?engine}" in
  vllm) ARGS='--engine vllm' ;;
  sglang) ARGS='--engine sglang' ;;
  *) echo unknown; exit 1 ;;
esac
python3 train.py $ARGS
