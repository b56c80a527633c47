#!/usr/bin/env bash
# Make the controller's environment what its hashed lock says: make-venv.sh PYTHON VENV LOCK
# pip installs a new one, so pip's own settings (mirrors, find-links, certificates) apply as they are; then it has uv,
# which makes it what another lock says and reads the same settings.
set -euo pipefail
python=$1 venv=$2 lock=$3

command -v "$python" >/dev/null || {
  echo "error: $python was not found. rolloutbench needs Python 3.11 or newer; on Debian: apt-get install python3.11 python3.11-venv," >&2
  echo "or name another one: make PYTHON=/path/to/python3.11 ..." >&2
  exit 1
}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "error: $python is $("$python" --version 2>&1); Python 3.11 or newer is needed: make PYTHON=... " >&2
  exit 1
}

echo "controller environment: $venv"
# Its programs have the folder's path in them: in a copy they would start the original's Python.
[ ! -f "$venv/pyvenv.cfg" ] || grep -qF " $PWD/$venv" "$venv/pyvenv.cfg" || rm -rf "$venv"
# An earlier release put a program of ours in the place of Snakemake's.
! grep -qs workflow.start "$venv/bin/snakemake" || rm -rf "$venv"
if [ -x "$venv/bin/uv" ] && "$venv/bin/python" scripts/sync.py "$lock"; then
  synced=1
elif [ ! -x "$venv/bin/python" ]; then
  if "$python" -c 'import ensurepip' 2>/dev/null; then
    "$python" -m venv --clear "$venv"
  elif "$python" -m pip --version >/dev/null 2>&1; then
    # A Python without ensurepip (Debian's, or another environment's): its own pip brings one.
    "$python" -m venv --clear --without-pip "$venv"
    "$python" -m pip --python "$venv/bin/python" install -qq pip || { rm -rf "$venv"; exit 1; }
  else
    echo "error: $python cannot make environments (no ensurepip, no pip). On Debian: apt-get install python3-venv" >&2
    exit 1
  fi
fi
[ -n "${synced:-}" ] || "$venv/bin/python" -m pip install -qq --no-compile --require-hashes -r "$lock" || {
  echo "error: the packages of $lock were not installed: pip says above what it could not have. It takes its own settings:" >&2
  echo "PIP_INDEX_URL (a mirror), PIP_CERT (a certificate), HTTPS_PROXY; docs/offline.md has the way without a network" >&2
  exit 1
}
# As pip would, but for the libraries' own tests: a third of all.
"$venv/bin/python" -m compileall -qq -j 2 -x '/tests?/' "$venv"/lib/python*/site-packages || true
"$venv/bin/python" -m pip install -qq --no-deps --no-build-isolation --no-index -e .
# The checkout's own folders.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf '%s\n' "$PWD" >"$site/rolloutbench-checkout.pth"
