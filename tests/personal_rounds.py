"""Rounds of processes whose clients have models of their own, in memory."""

import collections

import numpy as np
import stateful_rounds
import tensorflow as tf
import tensorflow_federated as tff

import tff_fedfish
from tff_fedfish.runtime.client_data import CANDIDATES, VALIDATION

_LOSS = collections.OrderedDict(total=np.float32(0), count=np.float32(0))


def with_loss(
  model: tff.learning.models.FunctionalModel,
) -> tff.learning.models.FunctionalModel:
  """Returns a model that also reports its loss, the mean over examples."""

  @tf.function
  def initialize():
    return tf.nest.map_structure(tf.constant, _LOSS)

  @tf.function
  def update(state, labels, batch_output, sample_weight=None):
    del labels, sample_weight
    count = tf.cast(batch_output.num_examples, tf.float32)
    return collections.OrderedDict(
      total=state['total'] + count * batch_output.loss,
      count=state['count'] + count,
    )

  @tf.function
  def finalize(state):
    return collections.OrderedDict(
      loss=tf.math.divide_no_nan(state['total'], state['count'])
    )

  return tff.learning.models.FunctionalModel(
    initial_weights=model.initial_weights,
    predict_on_batch_fn=model.predict_on_batch,
    loss_fn=model.loss,
    metrics_fns=(initialize, update, finalize),
    input_spec=model.input_spec,
  )


def argument(process, data, validation=None, candidates=(), kept=None):
  """Returns a client's argument.

  Args:
    process: A `FederatedProcess` with `personal_models`.
    data: Its batches.
    validation: Batches on which it validates. None: it does not.
    candidates: (position, weights) of the models that it is given.
    kept: Its last output. None: it takes part for the first time.
  """
  found = stateful_rounds.argument(process, data, kept)
  if validation is None:
    return found
  element = process.next.type_signature.parameter[1].member[CANDIDATES].element
  models = [tuple(weights) for _, weights in candidates]
  found[VALIDATION] = validation
  # Without any, they still have the shapes of the model's tensors.
  found[CANDIDATES] = tf.data.Dataset.from_tensor_slices(
    collections.OrderedDict(
      position=np.array([n for n, _ in candidates], np.int32),
      weights=tuple(
        np.reshape([m[i] for m in models], [-1, *spec.shape]).astype(np.float32)
        if models
        else np.zeros([0, *spec.shape], np.float32)
        for i, spec in enumerate(element['weights'])
      ),
    )
  )
  return found


class Rounds:
  """Runs rounds in which every client is sent the models of all others.

  Attributes:
    state: The process's.
    kept: Last output by client.
    metrics: Of the last round.
  """

  def __init__(self, process, *, validates=True):
    self.process = process
    self.state = process.initialize()
    self.kept, self.metrics = {}, None
    self._validates = validates

  def run(self, datasets, validation=None):
    """Runs a round of all clients; returns the models that there are.

    Args:
      datasets: Batches of all clients.
      validation: What they validate on; None: what they train on.
    """
    models = {n: kept['model'] for n, kept in self.kept.items()}
    arguments = []
    for client, data in enumerate(datasets):
      # Its own comes first.
      order = sorted(models, key=lambda n, own=client: (n != own, n))
      arguments.append(
        argument(
          self.process,
          data,
          (validation or datasets)[client] if self._validates else None,
          [(n, models[n]) for n in order],
          self.kept.get(client),
        )
      )
    with tff_fedfish.collect_client_outputs() as outputs:
      output = self.process.next(self.state, arguments)
    self.state, self.metrics = output.state, output.metrics
    for client, found in outputs.items():
      if found['is_valid']:
        self.kept[client] = found
    return [self.kept[c]['model'] for c in sorted(self.kept)]
