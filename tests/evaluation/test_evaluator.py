"""Fine-tuning of a client, as its config's local training."""

import dataclasses

import numpy as np

from tff_fedfish.data.sequences import Sequences
from tff_fedfish.evaluation.evaluator import build_evaluator
from tff_fedfish.run import checkpoints, model_state, run_directory


def test_micro_batches(small_run):
  config = run_directory.read_config(small_run)
  path = checkpoints.resolve_checkpoint(small_run)
  checkpoint = checkpoints.load_checkpoint(path, None)
  weights = model_state.model_weights(config, checkpoint).trainable
  num_rows, length = 8, config.data.sequence_length + 1
  tokens = np.random.RandomState(0).randint(0, 256, (num_rows, length))
  rows = Sequences(tokens.astype(np.int32), np.full(num_rows, length - 1))

  def tuned(micro_batch_size):
    work = dataclasses.replace(
      config.client_work, local_batch_size=8, micro_batch_size=micro_batch_size
    )
    evaluator = build_evaluator(dataclasses.replace(config, client_work=work))
    found = evaluator.fine_tune(
      weights, rows, num_local_epochs=2, learning_rate=0.1
    )
    return np.concatenate([np.ravel(tensor) for tensor in found])

  whole, sliced = tuned(None), tuned(3)
  # The same up to rounding: sums in slices of 3, 3 and 2 rows.
  np.testing.assert_allclose(sliced, whole, atol=1e-4)
  assert (sliced != whole).any()
