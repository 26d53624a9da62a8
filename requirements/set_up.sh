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
source requirements/install.sh

fail() {
  echo "set-up: $*" >&2
  exit 1
}

# One set-up at a time; a second one waits, and then finds nothing to do.
exec 9<"${BASH_SOURCE[0]}"
command -v flock >/dev/null && flock 9 || true

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
  python="$(requirements/find_python.sh)"
  echo "Setting up .venv from $lock; this takes some minutes once." >&2
  rm -f .venv/complete
  rm -rf .venv
  "$python" -m venv .venv 9<&-
  # Before the rest: one package exists as source only and is built with them.
  awk '/^[^ #]/ { wanted = /^(setuptools|wheel)==/ } wanted' "$lock" \
    >.venv/build-requirements.txt
  install -qq --require-hashes -r .venv/build-requirements.txt
  install_lock .venv "$lock"
fi
install -qq --use-pep517 --editable .
printf '%s\n' "$lock_name" "$packages" "$project" >.venv/complete.new
mv .venv/complete.new .venv/complete
