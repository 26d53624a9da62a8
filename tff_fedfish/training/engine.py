"""From a config to how its rounds are executed."""

from collections.abc import Callable

from tff_fedfish.runtime.ray_workers import RayWorkers
from tff_fedfish.runtime.round_options import RoundOptions
from tff_fedfish.training.config import TrainConfig

# Of a cohort that several workers share, where the config does not say.
_MAX_PARTIAL_SUMS = 8


def num_partial_sums(config: TrainConfig) -> int:
  """Returns into how many parts a cohort is divided."""
  engine, cohort_size = config.engine, config.cohorts.cohort_size
  if engine.num_partial_sums:
    return min(engine.num_partial_sums, cohort_size)
  if engine.kind == 'in_process':
    return 1
  return min(cohort_size, _MAX_PARTIAL_SUMS)


def build_workers(config: TrainConfig) -> RayWorkers | None:
  """Returns the workers of engine 'ray', to be closed; None in process."""
  engine = config.engine
  if engine.kind == 'in_process':
    return None
  return RayWorkers(
    engine.num_workers,
    threads_per_worker=engine.threads_per_worker,
    gpus_per_worker=engine.gpus_per_worker,
    address=engine.ray_address,
  )


def round_options(
  config: TrainConfig,
  workers: RayWorkers | None,
  should_stop: Callable[[], bool] | None = None,
) -> RoundOptions:
  """Returns the options of a run's rounds; a failing client is left out."""
  return RoundOptions(
    num_partial_sums=num_partial_sums(config),
    tolerates_failures=True,
    quorum=config.engine.quorum,
    should_stop=should_stop,
    workers=workers,
  )
