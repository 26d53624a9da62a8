"""Uploads of a client that has trained: its weights and a summary."""

import tensorflow as tf

from models.model_shapes import ModelShape, are_stacked
from tff_fedfish.methods.one_shot import curvature
from tff_fedfish.methods.one_shot.compression import (
  MODEL_BITS,
  compress_factor,
  quantize,
)
from tff_fedfish.methods.one_shot.uploads import (
  UploadKind,
  factor_rank,
  is_factor,
  summary_shapes,
)
from tff_fedfish.rounds.client import Trained

_SUMMARIES = {
  'none': lambda *_: {},
  'class_counts': curvature.class_counts,
  'diagonal': curvature.diagonal,
  'gram': curvature.gram,
  'kfac': curvature.kfac,
}


def weights_of(client: Trained, kind: UploadKind) -> tuple[tf.Tensor, ...]:
  """Returns the weights after local training as the server gets them."""
  weights = client.local.trainable
  if kind.compression == 'none':
    return weights
  return _quantized(client.start.spec.shape, weights)


def summary_of(client: Trained, kind: UploadKind) -> tuple[tf.Tensor, ...]:
  """Returns the tensors of the summary as the server gets them, in order."""
  spec, local = client.start.spec, client.local
  summarize = _SUMMARIES[kind.summary]
  summary = summarize(spec, local.trainable, local.dataset)
  return _sent(spec.shape, kind, summary)


@tf.autograph.experimental.do_not_convert
def _quantized(shape: ModelShape, tensors):
  """Returns tensors of the shapes of the weights with 16 bits an entry."""
  return tuple(
    quantize(tensor, MODEL_BITS, is_stacked=is_stacked)
    for tensor, is_stacked in zip(tensors, are_stacked(shape), strict=True)
  )


@tf.autograph.experimental.do_not_convert
def _sent(shape: ModelShape, kind: UploadKind, summary):
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
