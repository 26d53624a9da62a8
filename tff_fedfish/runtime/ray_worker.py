"""The Ray engine's code in a worker process."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_fedfish.runtime.round_options import ClientFailure, RoundOutcome


class PartResult(NamedTuple):
  """Result of a worker for one part of a cohort.

  Attributes:
    accumulator: Arrays of the partial accumulator; None if a client is to be
      tried again.
    secure_sums: Arrays, see `client_runner.PartialSum`.
    outcome: Counts and failures of the part's clients.
    failed_first: A client that raised for the first time; the part is then to
      be run again from its start, so that the order of its sum stays.
  """

  accumulator: list[np.ndarray] | None
  secure_sums: list[np.ndarray]
  outcome: RoundOutcome
  failed_first: ClientFailure | None


class _PartAbandoned(Exception):
  """Leaves a part at a client that is to be tried again elsewhere.

  Its argument is the `ClientFailure`.
  """


class RayWorker:
  """Compiles what it is sent once, then runs parts of cohorts."""

  def __init__(self, num_threads: int, shows_gpus: bool):
    """Fixes TensorFlow's threads and devices, before it starts.

    The GPUs that Ray reserved are shown to it; without any reserved, all
    workers would take the same one.
    """
    os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
    import tensorflow as tf

    from tff_fedfish.runtime import placement

    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    tf.config.threading.set_inter_op_parallelism_threads(num_threads)
    if not shows_gpus:
      tf.config.set_visible_devices([], 'GPU')
    placement.share_accelerators()
    # What is missing on this machine shows here, not at the first part.
    from tff_fedfish.runtime import client_runner  # noqa: F401

    self._spec = self._client_work = None

  def process_id(self) -> int:
    """Returns the id of this worker's process."""
    return os.getpid()

  def add_up(
    self,
    spec: Any,
    broadcast: Sequence[np.ndarray],
    clients: Sequence[tuple[int, Any]],
    failed_once: frozenset[int],
  ) -> PartResult:
    """Runs one part of a cohort; see `client_runner.ClientRunner.add_up`."""
    import tensorflow as tf

    from tff_fedfish.runtime import client_runner, placement, values

    if self._spec != spec:
      self._spec, self._client_work = spec, client_runner.ClientRunner(spec)
    outcome = RoundOutcome()

    def on_first_failure(failure, error):
      raise _PartAbandoned(failure) from error

    with placement.on_accelerator():
      try:
        partial = self._client_work.add_up(
          [tf.convert_to_tensor(array) for array in broadcast],
          clients,
          outcome,
          on_first_failure=on_first_failure,
          failed_once=failed_once,
        )
      except _PartAbandoned as abandoned:
        return PartResult(None, [], outcome, abandoned.args[0])
    return PartResult(
      [*map(values.as_array, partial.accumulator)],
      [*map(values.as_array, partial.secure_sums)],
      outcome,
      None,
    )
