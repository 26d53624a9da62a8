#!/usr/bin/env bash
# Prints the path of a CPython 3.11 that can make virtual environments.
#
# PYTHON=... in the environment names one instead of having it looked for.
set -euo pipefail

# Prints the interpreter behind $1, or fails. venv needs ensurepip, which some
# distributions ship separately. A pyenv shim exists for versions that are not
# active too. Behind the Python of a virtual environment, which may be the one to
# be replaced, is its base.
behind() {
  "$1" -c '
import ensurepip, sys, venv
ok = sys.version_info[:2] == (3, 11) and sys.implementation.name == "cpython"
if not ok or sys.maxsize < 2**32:
  sys.exit(1)
print(getattr(sys, "_base_executable", sys.executable))' 2>/dev/null
}

if [[ -n ${PYTHON:-} ]]; then
  behind "$PYTHON" && exit
  echo "set-up: PYTHON=$PYTHON is no CPython 3.11 with venv and ensurepip;" \
    'name another, or leave PYTHON out.' >&2
  exit 1
fi

shopt -s nullglob
: "${HOME:=/}"
for candidate in \
  python3.11 python3 python \
  "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.11*/bin/python3.11 \
  "${XDG_DATA_HOME:-$HOME/.local/share}"/uv/python/cpython-3.11*/bin/python3.11 \
  "$HOME"/.local/bin/python3.11 \
  "$HOME"/{miniconda3,miniforge3,anaconda3}/{,envs/*/}bin/python3.11 \
  /usr/local/bin/python3.11 /usr/bin/python3.11 \
  /opt/python*/bin/python3.11; do
  behind "$candidate" && exit
done
found="$(python3 --version 2>/dev/null || echo missing)"
echo "set-up: Python 3.11 with venv is required, and \`python3\` is $found." \
  'Install it beside that, for example by `uv python install 3.11`,' \
  '`pyenv install 3.11` or (Debian 12) `apt install python3.11-venv`, or set' \
  'PYTHON=/path/to/python3.11.' >&2
exit 1
