#!/usr/bin/env bash
# Installs NAME.lock into .venv-NAME, a directory for PYTHONPATH beside .venv, and
# does nothing if that is done.
#
# usage: requirements/set_up_beside.sh NAME
#
# .venv-NAME/complete names the lock; it is written last.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name="$1"
lock="requirements/$name.lock" directory=".venv-$name"
wanted="$(sha256sum <"$lock")"
# As in set_up.sh.
exec 9<"${BASH_SOURCE[0]}"
flock 9 2>/dev/null || true
[[ "$(cat "$directory/complete" 2>/dev/null)" == "$wanted" ]] && exit
echo "Setting up $directory from $lock." >&2
rm -rf "$directory"
requirements/uv.sh pip sync --python .venv --target "$directory" \
  --require-hashes --build-constraints requirements/requirements.lock \
  --require-build-hashes --preview-features build-dependency-hashes "$lock" || {
  echo "set-up: uv could not install $lock; the same command tries again." >&2
  exit 1
}
echo "$wanted" >"$directory/complete"
