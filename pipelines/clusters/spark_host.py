"""Starts Spark's own master or worker on a host, from the package pyspark.

    python -m pipelines.clusters.spark_host master --host host0
    python -m pipelines.clusters.spark_host worker --host host1 \
        --master spark://host0:7077 --cores 1 --memory 2g

The package has all jars but no start scripts. Java 17 must be in PATH. The
worker's executors inherit PYTHONPATH and need this package and `.venv`'s.
"""

import argparse
import importlib.util
import os
import pathlib
import shutil
import sys
import tempfile

_CLASS = 'org.apache.spark.deploy'


def main() -> int:
  """Becomes the Java process; returns only if it cannot."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('role', choices=('master', 'worker'))
  parser.add_argument('--host', required=True, help='name of this host')
  parser.add_argument('--port', default='7077', help="the master's")
  parser.add_argument('--master', help='spark://HOST:PORT, for a worker')
  parser.add_argument('--cores', default='1', help='tasks at a time')
  parser.add_argument('--memory', default='2g', help='of all executors')
  arguments = parser.parse_args()
  if (arguments.role == 'worker') != bool(arguments.master):
    parser.error('`--master` is required for a worker, and for nothing else')
  found, java = importlib.util.find_spec('pyspark'), shutil.which('java')
  if found is None or java is None:
    missing = 'package pyspark (pip install pyspark==3.5.9)'
    if found is not None:
      missing = 'program java (such as apt install openjdk-17-jre-headless)'
    print(f'spark_host: there is no {missing}.', file=sys.stderr)
    return 2
  home = pathlib.Path(found.origin).parent
  # Without it, Spark takes the package for a build of its own sources.
  os.environ |= {'SPARK_HOME': str(home), 'SPARK_SCALA_VERSION': '2.12'}
  command = [java, '-cp', f'{home}/jars/*', '-Xmx512m']
  if arguments.role == 'master':
    command += [f'{_CLASS}.master.Master', '--port', arguments.port]
  else:
    work = tempfile.mkdtemp(prefix='spark-worker-')
    command += [f'{_CLASS}.worker.Worker', arguments.master]
    command += ['--cores', arguments.cores, '--memory', arguments.memory]
    command += ['--work-dir', work]
  os.execv(java, [*command, '--host', arguments.host])


if __name__ == '__main__':
  sys.exit(main())
