#!/usr/bin/env bash
# Debian packages that are needed beside Python, git and make: packages.sh build|picture|test|slurm|lacking [PYTHON [STACK ...]]
#   build  what the CPU stacks (or those named) need to run; PYTHON is the controller's
#   picture  what `make picture` draws with
#   test   what the tests of the report's page need
#   slurm  what the tests on a real Slurm need
#   lacking  installs nothing: a line for each thing that `make test` needs and this machine lacks
# They are installed when this is root on Debian. Otherwise `build` and `picture` say what to install and stop; for the
# others the tests that need them say what to install, and skip.
set -euo pipefail
what=$1 python=${2:-.venv/bin/python}
stacks=("${@:3}")
[ ${#stacks[@]} -gt 0 ] || stacks=(trl-vllm-cpu)  # it needs all that the others do

if [ "$what" = lacking ]; then
  for kind in "build:packages of the stacks" "test:browser" "slurm:Slurm"; do
    found=$(ONLY_SAY=1 bash "$0" "${kind%%:*}" "$python") || true
    echo "  ${kind#*:}: ${found:-here}"
  done
  shopt -s nullglob
  built=(.stacks/*-cpu) known=(envs/*-cpu)
  echo "  stacks: ${#built[@]} of ${#known[@]} built; the first test that asks for one builds it (minutes, once per lock)"
  [ "$(id -u)" = 0 ] || echo "  root: the tests of several users and of full disks skip without it"
  exit 0
fi

missing=()
has() { command -v "$1" >/dev/null; }
case $what in
  build)
    # What their definitions say (run_needs in envs/*/stack.yaml).
    for stack in "${stacks[@]}"; do
      found=$("$python" -m workflow.stacks check "$stack" --debian)
      read -ra lacking <<<"${found//$'\n'/ }"
      missing+=("${lacking[@]}")
    done
    ;;
  picture | test)
    has chromium || missing+=(chromium)
    has chromedriver || missing+=(chromium-driver)
    [ "$what" = test ] || has pdftocairo || missing+=(poppler-utils)
    # Without a font for Japanese and Chinese the page's text is boxes.
    ls /usr/share/fonts/opentype/noto/*CJK* >/dev/null 2>&1 || missing+=(fonts-noto-cjk)
    ;;
  slurm)
    PATH=$PATH:/usr/sbin:/sbin
    has slurmctld && has slurmd && has sbatch || missing+=(slurm-wlm)
    has slurmdbd || missing+=(slurmdbd)
    has mariadbd || missing+=(mariadb-server-core)
    has munged || missing+=(munge)
    ;;
esac
[ ${#missing[@]} -eq 0 ] && exit 0
[ -n "${ONLY_SAY:-}" ] && echo "not installed. On Debian: sudo apt-get install ${missing[*]}" && exit 0

# The tests start daemons of their own: none of the packages' services is to be started. (At the next boot munge would
# be; Slurm's own want a configuration in /etc/slurm, and mariadb-server-core has none.)
without_services() {
  local policy=/usr/sbin/policy-rc.d
  [ -e "$policy" ] && return
  trap "rm -f $policy" EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
}

if [ "$(id -u)" = 0 ] && has apt-get; then
  echo "installing Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update
  [ "$what" = slurm ] && without_services
  apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
  exit 0
fi
echo "not installed: ${missing[*]}. On Debian: sudo apt-get install ${missing[*]}" >&2
[[ $what = build || $what = picture ]] && exit 1
echo "the tests that need them will be skipped" >&2
