#!/usr/bin/env bash
# Debian packages that are needed beside Python, git and make: packages.sh build|test [PYTHON]
#   build  what the stacks need: vLLM compiles its CPU kernels when it starts
#   test   what the tests need besides
# They are installed when this is root on Debian. Otherwise `build` says what to install and stops; for `test` the tests
# that need them say what to install, and skip.
set -euo pipefail
what=$1 python=${2:-python3.11}

missing=()
has() { command -v "$1" >/dev/null; }
has_headers() { "$python" -c 'import os, sysconfig; assert os.path.exists(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null; }
case $what in
  build)
    [ -n "${CXX:-}" ] || has g++ || missing+=(g++)
    has_headers || missing+=(python3.11-dev)
    { ldconfig -p 2>/dev/null || /sbin/ldconfig -p; } | grep -q 'libnuma\.so\.1' || missing+=(libnuma1)
    ;;
  test)
    has chromium || missing+=(chromium)
    has chromedriver || missing+=(chromium-driver)
    # Without a font for Japanese and Chinese the page's text is boxes.
    ls /usr/share/fonts/opentype/noto/*CJK* >/dev/null 2>&1 || missing+=(fonts-noto-cjk)
    ;;
esac
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" = 0 ] && has apt-get; then
  echo "installing Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update
  apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
  exit 0
fi
echo "not installed: ${missing[*]}. On Debian: sudo apt-get install ${missing[*]}" >&2
[ "$what" = test ]
