"""Beam's runner for Dask, with a task for each element and an end that is told.

    fedfish group ... --runner=pipelines.clusters.dask_runner.DaskRunner \
        --dask_client_address=host0:8786

Beam's own takes a job for done whose scheduler was lost, and runs up to 128
elements one after the other.
"""

import contextlib

from apache_beam.runners.dask import dask_runner

from pipelines.run_errors import LostSchedulerError
from tff_fedfish.errors import UserError


class DaskRunner(dask_runner.DaskRunner):
  """Runs a job on a Dask cluster, to its end."""

  def run_pipeline(self, pipeline, options):  # noqa: D102
    given = options.view_as(dask_runner.DaskOptions)
    if given.npartitions is None and given.partition_size is None:
      given.partition_size = 1
    try:
      result = super().run_pipeline(pipeline, options)
    except (OSError, ValueError, ImportError) as error:
      raise UserError(
        '`--dask_client_address` must be where a Dask scheduler answers, found '
        f'{given.address!r} ({error}). Start one there, or name another.'
      ) from error
    result.wait_until_finish()
    if any(future.status != 'finished' for future in result.futures):
      # Or it would try to, for a minute, when the process ends.
      with contextlib.suppress(Exception):
        result.client.close(timeout=1)
      raise LostSchedulerError(f'the Dask scheduler at {given.address}')
    return result
