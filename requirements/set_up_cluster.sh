#!/usr/bin/env bash
# Installs cluster.lock into .venv-cluster, a directory for PYTHONPATH beside
# .venv, and does nothing if that is done.
#
# .venv-cluster/complete names the lock; it is written last.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

wanted="$(sha256sum <requirements/cluster.lock)"
exec 9<"${BASH_SOURCE[0]}"
flock 9
[[ "$(cat .venv-cluster/complete 2>/dev/null)" == "$wanted" ]] && exit
echo 'Setting up .venv-cluster from requirements/cluster.lock; this fetches' \
  '320 MB and takes some minutes once.' >&2
rm -rf .venv-cluster
# pyspark exists as source only, and is built by what .venv has.
.venv/bin/python -m pip --disable-pip-version-check install -qq --no-deps \
  --no-build-isolation --require-hashes --target .venv-cluster \
  -r requirements/cluster.lock 9<&-
echo "$wanted" >.venv-cluster/complete
