#!/usr/bin/env bash
# Resolves requirements/*.in into requirements/*.lock, for Linux x86-64 only.
#
# uv, because pip has no overrides, and without them nothing resolves.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

uv="$PWD/uv.sh"
temporary="$(mktemp -d)"
trap 'rm -rf "$temporary"' EXIT

upgrade=()
if [[ "${UPGRADE:-}" == 1 ]]; then
  upgrade=(--upgrade)
fi
# Versions stay as locked unless UPGRADE=1. The result names no index: it holds
# whatever serves the files with these hashes.
compile() {
  "$uv" pip compile "${upgrade[@]}" --quiet \
    --python-version 3.11 --python-platform x86_64-manylinux_2_31 \
    --generate-hashes --no-header "$@"
}
# NAME ARGUMENTS...: packages beside those of requirements.lock.
compile_beside() {
  compile "$1.in" --no-annotate --constraint requirements.lock "${locked[@]}" \
    --output-file "$1.lock" "${@:2}"
}
cp ./*.in ./*.lock ./*overrides.txt "$temporary"
pushd "$temporary" >/dev/null
compile requirements.in --override overrides.txt --output-file requirements.lock
compile requirements-cuda.in --override overrides.txt --no-annotate \
  --constraint requirements.lock --output-file requirements-cuda.lock
readarray -t locked \
  < <(awk -F== '/^[^ #]/ { print "--no-emit-package=" $1 }' requirements.lock)
compile_beside cluster --override overrides.txt \
  --override cluster-overrides.txt
compile_beside huggingface
compile_beside trackers
compile_beside docs
compile_beside containers
popd >/dev/null
# All or none.
mv "$temporary"/*.lock .
