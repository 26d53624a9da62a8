"""Client work of the one-shot methods: train, summarize, upload.

Jhunjhunwala et al. (2024), "FedFisher: Leveraging Fisher information for
one-shot federated learning", algorithm 1. The process itself is FedAvg; what
clients upload beside the model delta is their client output, over which the
server solves (`one_shot/`).
"""

import tensorflow_federated as tff

from models.functional_model import ModelSpec
from models.model_shapes import ModelShape
from tff_fedfish.methods.one_shot import client_summaries
from tff_fedfish.methods.one_shot.upload_sizes import Upload
from tff_fedfish.rounds.compose import Trained, compose
from tff_fedfish.rounds.kept import KeptSlot


def build_one_shot(
  model: ModelSpec,
  *,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  num_local_epochs: int = 1,
  shape: ModelShape,
  summary: str = 'kfac',
  compression: str = 'none',
  client_weighting: tff.learning.ClientWeighting = (
    tff.learning.ClientWeighting.NUM_EXAMPLES
  ),
  num_local_steps: int | None = None,
  micro_batch_size: int | None = None,
) -> tff.learning.templates.LearningProcess:
  """Builds the client work of a one-shot method, as a FedAvg process.

  `next` returns FedAvg's state. The client outputs (`collect_client_outputs`)
  are <is_valid, client_weight, weights, summary>: w_i, the
  weights after local training, and the summary of `client_summaries.py`, the
  latter two compressed. A solver of `tff_fedfish.one_shot` takes them.

  Args:
    model: A ModelSpec.
    client_optimizer: See `build_fed_avg`.
    server_optimizer: See `build_fed_avg`.
    num_local_epochs: See `build_fed_avg`.
    shape: The model's shape.
    summary: See `methods.method.Upload`.
    compression: See there.
    client_weighting: See `build_fed_avg`.
    num_local_steps: See `build_fed_avg`.
    micro_batch_size: See `build_fed_avg`.

  Returns:
    The learning process, a `StatefulLearningProcess` without kept slots.

  Raises:
    TypeError: If `model` is no ModelSpec.
    ValueError: If an argument is outside what is listed.
  """
  if not isinstance(model, ModelSpec):
    raise TypeError(
      f'`model` must be a tff_fedfish.ModelSpec, found {type(model).__name__}.'
    )
  upload = Upload(summary, compression)
  client_summaries.require_known(upload)

  def summary_of(client: Trained):
    found = client_summaries.summarize(
      model, shape, upload, client.local.trainable, client.local.dataset
    )
    return client_summaries.compressed(shape, upload, found)

  def weights_of(client: Trained):
    return client_summaries.compressed_weights(
      shape, upload, client.local.trainable
    )

  outputs = {
    'client_weight': lambda client: client.weight,
    'weights': weights_of,
    'summary': summary_of,
  }
  return compose(
    model,
    client_optimizer=client_optimizer,
    server_optimizer=server_optimizer,
    num_local_epochs=num_local_epochs,
    client_weighting=client_weighting,
    make_update=lambda client: client.model_delta(),
    aggregation_factory=tff.aggregators.MeanFactory(no_nan_division=True),
    kept_slots={
      name: KeptSlot(initial=None, next=output)
      for name, output in outputs.items()
    },
    num_local_steps=num_local_steps,
    micro_batch_size=micro_batch_size,
  )
