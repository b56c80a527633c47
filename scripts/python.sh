#!/usr/bin/env bash
# Print the first Python on PATH that can run the controller: python3.11, or a newer one.
for name in python3.11 python3.12 python3.13 python3.14 python3; do
  # Started, not only found: pyenv's shims are there for releases that were not chosen.
  if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "$name"
    exit 0
  fi
done
echo python3.11 # make-venv.sh says that it is not there
