#!/usr/bin/env bash
# Builds the wheel, installs it as docs/installation.md says into an environment
# of its own, and runs the demo from it where no source is.
#
# Everything is in a temporary directory, which is removed.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# What git tracks only: nothing that lies about is to come into the wheel.
mkdir "$work/source"
git ls-files -z | xargs -0 cp --parents --target-directory "$work/source"
(cd "$work/source" && "$root/.venv/bin/python" -m build --wheel \
  --no-isolation --outdir "$work" . >"$work/build.log" 2>&1) || {
  cat "$work/build.log" >&2
  exit 1
}
wheel="$(echo "$work"/tff_fedfish-*.whl)"

# The packages' files, no more and no fewer; beside them are those about them.
git ls-files tff_fedfish pipelines models configs | sort >"$work/tracked"
.venv/bin/python -m zipfile --list "$wheel" | awk 'NR > 1 { print $1 }' \
  | grep -v '^tff_fedfish-[^/]*\.dist-info/' | sort >"$work/packed"
diff "$work/tracked" "$work/packed" || {
  echo 'The wheel lacks files marked <, and should not hold those marked >.' >&2
  exit 1
}

python="$(requirements/find_python.sh)"
requirements/uv.sh venv --quiet --python "$python" "$work/venv"
cd "$work"
install() {
  "$root/requirements/uv.sh" pip install --quiet --python venv --no-deps "$@"
}
install -r source/requirements/requirements.lock
install "$wheel"
rm -rf source

# No path of the tree, nor anything else that a user's shell may have set.
fedfish() {
  env -u PYTHONPATH venv/bin/fedfish "$@"
}
fedfish doctor
fedfish demo --workdir demo
[[ -s demo/report/index.html ]]
echo "$(basename "$wheel"): $(wc -l <packed) files; doctor and demo ran from it."
