"""Client work of the one-shot methods: train, summarize, upload.

Jhunjhunwala et al. (2024), "FedFisher: Leveraging Fisher information for
one-shot federated learning", algorithm 1. The process itself is FedAvg; what
clients upload beside the model delta is their client output, over which the
server solves.
"""

from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from models.functional_model import ModelSpec
from models.model_shapes import ModelShape, are_stacked
from tff_fedfish.errors import require
from tff_fedfish.methods.one_shot import curvature
from tff_fedfish.methods.one_shot.compression import (
  MODEL_BITS,
  compress_factor,
  quantize,
)
from tff_fedfish.methods.one_shot.uploads import (
  CLIENT_WEIGHT,
  SUMMARY,
  WEIGHTS,
  UploadKind,
  factor_rank,
  is_factor,
  summary_shapes,
)
from tff_fedfish.rounds.compose import compose
from tff_fedfish.rounds.kept import KeptSlot

_SUMMARIES = {
  'none': lambda *_: {},
  'class_counts': curvature.class_counts,
  'diagonal': curvature.diagonal,
  'gram': curvature.gram,
  'kfac': curvature.kfac,
}


def build_one_shot(
  model: ModelSpec,
  *,
  shape: ModelShape,
  summary: str = 'kfac',
  compression: str = 'none',
  **training: Any,
) -> tff.learning.templates.LearningProcess:
  """Builds the client work of a one-shot method, as a FedAvg process.

  `next` returns FedAvg's state. The client outputs (`collect_client_outputs`)
  are <is_valid, client_weight, weights, summary>: w_i, the weights after local
  training and the tensors of `summary_shapes`, the latter two compressed.

  Args:
    model: The model.
    shape: Its shape.
    summary: See `UploadKind`.
    compression: See `UploadKind`.
    **training: See `compose`. The summary is made of whole batches, whatever
      `micro_batch_size` is.

  Raises:
    TypeError: If `model` is no ModelSpec.
    ValueError: With `local_privacy`, as uploads would have no noise.
  """
  is_private = training.get('local_privacy') is not None
  require(not is_private, 'local_privacy', 'None', 'a LocalPrivacy')
  if not isinstance(model, ModelSpec):
    raise TypeError(
      f'`model` must be a tff_fedfish.ModelSpec, found {type(model).__name__}.'
    )
  kind, summarize = UploadKind(summary, compression), _SUMMARIES[summary]
  is_compressed = {'none': False, 'paper': True}[compression]

  def weights_of(client):
    weights = client.local.trainable
    return _quantized(shape, weights) if is_compressed else weights

  def summary_of(client):
    weights, dataset = client.local.trainable, client.local.dataset
    return _sent(shape, kind, summarize(model, shape, weights, dataset))

  outputs = {
    CLIENT_WEIGHT: lambda client: client.weight,
    WEIGHTS: weights_of,
    SUMMARY: summary_of,
  }
  return compose(
    model,
    make_update=lambda client: client.model_delta(),
    kept_slots={
      name: KeptSlot(initial=None, next=output)
      for name, output in outputs.items()
    },
    **training,
  )


@tf.autograph.experimental.do_not_convert
def _quantized(shape, tensors):
  """Returns tensors of the shapes of the weights with 16 bits an entry."""
  return tuple(
    quantize(tensor, MODEL_BITS, is_stacked=is_stacked)
    for tensor, is_stacked in zip(tensors, are_stacked(shape), strict=True)
  )


@tf.autograph.experimental.do_not_convert
def _sent(shape, kind, summary):
  """Returns the tensors of a summary as the server gets them, in order."""
  names = summary_shapes(shape, kind)
  tensors = tuple(summary[name] for name in names)
  if kind.compression == 'none' or kind.summary == 'class_counts':
    return tensors
  if kind.summary == 'diagonal':
    return _quantized(shape, tensors)
  rank = factor_rank(shape, kind)
  return tuple(
    compress_factor(tensor, rank)
    if is_factor(name)
    else quantize(tensor, MODEL_BITS)
    for name, tensor in zip(names, tensors, strict=True)
  )
