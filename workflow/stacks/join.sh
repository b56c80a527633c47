#!/bin/sh
# Checks the parts beside this script, joins them into a folder and checks every file in it:
#     sh join.sh [FOLDER]
set -eu
parts=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:-wheelhouse}"
out=$(cd "${1:-wheelhouse}" && pwd)
cd "$parts"
sha256sum --quiet -c SHA256SUMS || { echo "error: copy the parts named above again" >&2; exit 1; }
cat $(cut -c67- SHA256SUMS) | tar -xf - -C "$out"
cd "$out"
sha256sum --quiet -c SHA256SUMS
cat <<END
@NAME@: @COUNT@ files, all with the right sha256, in $out/wheels
@NEXT@
END
