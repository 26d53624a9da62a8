"""From a config to how its rounds are executed."""

from collections.abc import Callable

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.runtime.ray_workers import RayWorkers
from tff_fedfish.runtime.round_options import RoundOptions


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
    num_partial_sums=config.num_partial_sums,
    tolerates_failures=True,
    quorum=config.engine.quorum,
    should_stop=should_stop,
    workers=workers,
  )
