"""Starts Spark's own master or worker on a host, from the package pyspark.

    python -m pipelines.clusters.spark_host master --host host0 --port 7077
    python -m pipelines.clusters.spark_host worker spark://host0:7077 \
        --host host1 --cores 1 --memory 1800m

The package holds all jars but no start scripts. What follows the first word are
Spark's own options. Java 17 must be in PATH; what a worker runs inherits its
PYTHONPATH. Logs, and what a job shuffles, go below TMPDIR, unless
SPARK_WORKER_DIR and SPARK_LOCAL_DIRS say otherwise.
"""

import importlib.util
import os
import pathlib
import shutil
import sys
import tempfile

_ROLES = {'master': 'master.Master', 'worker': 'worker.Worker'}


def main(role: str = '', *options: str) -> str:
  """Becomes the Java process; returns only to say why it cannot."""
  found, java = importlib.util.find_spec('pyspark'), shutil.which('java')
  if role not in _ROLES:
    return f'spark_host: the first word must be master or worker, not {role!r}.'
  if found is None:
    return 'spark_host: there is no package pyspark: pip install pyspark==3.5.9'
  if java is None:
    return 'spark_host: there is no java: apt install openjdk-17-jre-headless'
  home = pathlib.Path(found.origin).parent
  work = os.path.join(tempfile.gettempdir(), 'spark-worker')
  defaults = {'SPARK_WORKER_DIR': work, 'SPARK_LOCAL_DIRS': work}
  # Without these, Spark takes the package for a build of its own sources.
  fixed = {'SPARK_HOME': str(home), 'SPARK_SCALA_VERSION': '2.12'}
  name = f'org.apache.spark.deploy.{_ROLES[role]}'
  command = [java, '-cp', f'{home}/jars/*', '-Xmx512m', name, *options]
  os.execve(java, command, defaults | os.environ | fixed)


if __name__ == '__main__':
  sys.exit(main(*sys.argv[1:]))
