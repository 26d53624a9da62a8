#!/usr/bin/env bash
# Makes .venv what a lock file and setup.py say, and does nothing if it is that.
#
# usage: requirements/set_up.sh [requirements.lock | requirements-cuda.lock]
#
# Without an argument a complete .venv keeps the lock file that it was made from.
# .venv/complete holds a fingerprint of what was installed. It is removed first
# and written last: an interrupted set-up is started afresh, never continued.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "set-up: $*" >&2
  exit 1
}

# One set-up at a time; a second one waits, and then finds nothing to do. uv holds
# the lock, too, if it outlives this script. Some file systems have no locks.
exec 9<"${BASH_SOURCE[0]}"
flock 9 2>/dev/null || true

found_lock='' found_packages='' found_project=''
if [[ -f .venv/complete && -x .venv/bin/python ]]; then
  {
    read -r found_lock && read -r found_packages && read -r found_project
  } <.venv/complete || true
fi
lock_name="${1:-${found_lock:-requirements.lock}}"
lock="requirements/$lock_name"
[[ -f $lock ]] || fail "there is no $lock."

# A virtual environment names its own path, so a moved one is not complete.
packages="$(pwd)/.venv $(sha256sum <"$lock")"
project="$(sha256sum <setup.py) $(sha256sum <tff_fedfish/version.py)"
if [[ $found_packages == "$packages" && $found_project == "$project" ]]; then
  exit 0
fi

if [[ $found_packages == "$packages" ]]; then
  rm .venv/complete
else
  [[ "$(uname -sm)" == 'Linux x86_64' ]] || fail \
    "the locked packages exist for Linux on x86-64 only, this is $(uname -sm)."
  PYTHON="$(requirements/find_python.sh)"
  export PYTHON
  echo "Setting up .venv from $lock; this takes a minute or more, once." >&2
  requirements/uv.sh --version >/dev/null
  rm -f .venv/complete
  rm -rf .venv
  requirements/uv.sh venv --quiet --python "$PYTHON" .venv
  # One package exists as source only; what builds it is locked, too.
  requirements/uv.sh pip sync --python .venv --require-hashes \
    --build-constraints "$lock" --require-build-hashes \
    --preview-features build-dependency-hashes "$lock" \
    || fail "uv could not install $lock; the same command tries again."
fi
requirements/uv.sh pip install --quiet --python .venv --no-deps \
  --no-build-isolation --editable . \
  || fail 'uv could not install the project.'
printf '%s\n' "$lock_name" "$packages" "$project" >.venv/complete.new
mv .venv/complete.new .venv/complete
