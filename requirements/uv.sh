#!/usr/bin/env bash
# Runs the uv that uv.txt pins, with pip's settings, and installs it before if
# .venv-uv lacks it.
#
# usage: requirements/uv.sh UV_ARGUMENT...
#
# .venv-uv/complete names uv.txt; it is written last.
set -euo pipefail
requirements="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
directory="$requirements/../.venv-uv"

wanted="$(sha256sum <"$requirements/uv.txt")"
# Some file systems have no locks.
exec 8<"${BASH_SOURCE[0]}"
flock 8 2>/dev/null || true
if [[ "$(cat "$directory/complete" 2>/dev/null)" != "$wanted" \
  || ! -x "$directory/bin/python" || ! -x "$directory/bin/uv" ]]; then
  python="$("$requirements/find_python.sh")"
  rm -rf "$directory"
  "$python" -m venv "$directory"
  "$directory/bin/python" -m pip --disable-pip-version-check install -qq \
    --no-user --no-deps --require-hashes -r "$requirements/uv.txt" \
    && [[ -x $directory/bin/uv ]] || {
    echo 'set-up: pip could not install uv, requirements/uv.txt; the same command tries again.' >&2
    exit 1
  }
  echo "$wanted" >"$directory/complete"
fi
exec 8<&-
exec "$directory/bin/python" "$requirements/run_uv.py" "$@"
