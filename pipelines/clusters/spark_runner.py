"""A runner for a Spark cluster, of the package beam-pyspark-runner.

    fedfish group ... --runner=pipelines.clusters.spark_runner.SparkRunner \
        --spark_master=spark://host0:7077

The package's own runner reads up to a hundred elements one after the other;
this one reads each in a task of its own, so that workers share them.
"""

import os
import sys

import beam_pyspark_runner.overrides
from apache_beam.options.pipeline_options import PipelineOptions
from beam_pyspark_runner import pyspark_runner, transform_evaluators
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tff_fedfish.errors import UserError

_MAX_TASKS = 10_000
# A host with a full disk fails fast, and would be given every retry. So a task
# that has failed there twice, of the four times that it may fail, goes to
# another; but no host is left out for all tasks, as Spark then loses minutes
# with replacing its executors if they all fail.
_EXCLUDE = 'spark.excludeOnFailure'
_DEFAULTS = (
  f'{_EXCLUDE}.enabled=true',
  f'{_EXCLUDE}.task.maxTaskAttemptsPerExecutor=2',
  f'{_EXCLUDE}.stage.maxFailedTasksPerExecutor=1000000',
  f'{_EXCLUDE}.application.maxFailedTasksPerExecutor=1000000',
  'spark.ui.enabled=false',
  'spark.ui.showConsoleProgress=false',
)


class SparkRunnerOptions(PipelineOptions):
  """Names the cluster, and what is asked of it."""

  @classmethod
  def _add_argparse_args(cls, parser):
    parser.add_argument(
      '--spark_master', default='local[*]', help="Spark's master"
    )
    parser.add_argument(
      '--spark_conf',
      action='append',
      metavar='KEY=VALUE',
      help="a property of Spark's, such as spark.executor.memory=4g",
    )


class SparkRunner(pyspark_runner.PySparkRunner):
  """Runs a job on a Spark cluster, and ends its session."""

  def run_pipeline(self, pipeline, options):
    """Runs the job to its end."""
    given = options.view_as(SparkRunnerOptions)
    builder = SparkSession.builder.master(given.spark_master)
    for pair in [*_DEFAULTS, *(given.spark_conf or [])]:
      key, sign, value = pair.partition('=')
      if not (key and sign):
        raise UserError(
          '`--spark_conf` must be KEY=VALUE, such as spark.executor.memory=4g, '
          f'found {pair!r}.'
        )
      builder = builder.config(key, value)
    evaluators = transform_evaluators.evaluator_mapping
    evaluators[beam_pyspark_runner.overrides._Create] = _create
    # Or executors run the first python3 of PATH.
    os.environ.setdefault('PYSPARK_PYTHON', sys.executable)
    try:
      session = builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
      raise UserError(
        f'`--spark_master` {given.spark_master!r} and `--spark_conf` '
        f'{given.spark_conf or []} must lead to a Spark session, but Spark '
        'makes none and says why above. Correct them, or set JAVA_HOME to a '
        'Java 17.'
      ) from error
    with session:
      return super().run_pipeline(pipeline, options)


def _create(transform, _, context, side_inputs=None):
  del side_inputs
  values = transform.transform.values
  return context.parallelize(values, min(len(values), _MAX_TASKS))
