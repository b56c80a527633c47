#!/usr/bin/env bash
# Debian packages that the tests use. Installed when this is root on Debian; otherwise the tests that need them say
# what to install, and skip.
set -euo pipefail

declare -A needed=([chromium]=chromium [chromedriver]=chromium-driver)
missing=()
for program in "${!needed[@]}"; do
  command -v "$program" >/dev/null || missing+=("${needed[$program]}")
done
# Without a font for Japanese and Chinese the page's text is boxes.
ls /usr/share/fonts/opentype/noto/*CJK* >/dev/null 2>&1 || missing+=(fonts-noto-cjk)
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing for the tests: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update
  apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
else
  echo "not installed: ${missing[*]}; the tests that need them will skip. On Debian: sudo apt-get install ${missing[*]}"
fi
