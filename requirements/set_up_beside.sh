#!/usr/bin/env bash
# Installs NAME.lock into .venv-NAME, a directory for PYTHONPATH beside .venv, and
# does nothing if that is done.
#
# usage: requirements/set_up_beside.sh NAME
#
# .venv-NAME/complete names the lock; it is written last.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source requirements/install.sh

name="$1"
lock="requirements/$name.lock" directory=".venv-$name"
wanted="$(sha256sum <"$lock")"
exec 9<"${BASH_SOURCE[0]}"
flock 9
[[ "$(cat "$directory/complete" 2>/dev/null)" == "$wanted" ]] && exit
echo "Setting up $directory from $lock; this takes some minutes once." >&2
rm -rf "$directory"
mkdir "$directory"
# Some packages exist as source only, and are built by what .venv has.
install_lock "$directory" "$lock" --target "$directory"
echo "$wanted" >"$directory/complete"
