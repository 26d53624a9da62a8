"""Uploads of models with random weights, for tests of one-shot solvers."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from models import transformer
from models.functional_model import build_image_model
from models.image_models import initial_weights
from models.model_shapes import ModelShape, weight_shapes
from models.permutations import PermutationGroup, permutation_groups, permute
from models.transformer_config import TransformerConfig
from tff_fedfish.methods.one_shot.solving import SolveContext, Upload

WeightsByName = Mapping[str, np.ndarray]


class ListedUploads(list):
  """Uploads in memory.

  Attributes:
    shares: Weight of each client by those of all.
    num_bytes: As if they were files.
    num_read: Uploads that loops have read.
  """

  num_bytes = 1000

  def __init__(self, uploads: Iterable[Upload]):
    super().__init__(uploads)
    weights = np.array([u.client_weight for u in list.__iter__(self)], float)
    self.shares = weights / weights.sum()
    self.num_read = 0

  def __iter__(self):
    for upload in super().__iter__():
      self.num_read += 1
      yield upload

  def part(self, index, weights, summary):
    """See `one_shot.solving.Uploads`."""
    upload = self[index]
    return [upload.weights[i] for i in weights], {
      name: upload.summary[name] for name in summary
    }

  @property
  def start(self):
    """w_bar, float32."""
    tensors = zip(*(u.weights for u in list.__iter__(self)), strict=True)
    return tuple(
      np.average(np.stack(t), axis=0, weights=self.shares).astype(np.float32)
      for t in tensors
    )


def uploads_of(
  models: Sequence[WeightsByName],
  num_examples: Sequence[int],
  class_counts: Sequence[Sequence[int]] | None = None,
) -> ListedUploads:
  """Returns an upload per model, with counts of classes if given."""
  summaries = [{} for _ in models]
  if class_counts is not None:
    summaries = [dict(class_counts=np.array(n, int)) for n in class_counts]
  return ListedUploads(
    Upload(n, tuple(weights.values()), summary)
    for weights, n, summary in zip(models, num_examples, summaries, strict=True)
  )


def random_weights(shape: ModelShape, seed: int) -> dict[str, np.ndarray]:
  """Returns initial weights plus noise, also of biases and norms."""
  random = np.random.default_rng(seed)
  if isinstance(shape, TransformerConfig):
    drawn = transformer.initial_weights(shape, seed)
  else:
    drawn = initial_weights(shape, seed)
  return {
    name: weight.numpy() + random.normal(0, 0.1, weight.shape).astype('f4')
    for name, weight in zip(weight_shapes(shape), drawn, strict=True)
  }


def random_permutation(
  group: PermutationGroup, random: np.random.Generator
) -> np.ndarray:
  """Draws an order of the group's parts, and of the units in each part."""
  part_size = group.num_units // group.num_parts
  return np.concatenate(
    [
      part * part_size + random.permutation(part_size)
      for part in random.permutation(group.num_parts)
    ]
  )


def permuted_copy(
  shape: ModelShape, weights: WeightsByName, seed: int
) -> dict[str, np.ndarray]:
  """Returns the weights with all groups of units in random orders."""
  random = np.random.default_rng(seed)
  for group in permutation_groups(shape):
    weights = permute(weights, group, random_permutation(group, random))
  return weights


def logits(shape: ModelShape, weights: WeightsByName) -> np.ndarray:
  """Returns the logits of three random rows."""
  random = np.random.default_rng(1)
  weights = tuple(map(tf.constant, weights.values()))
  if isinstance(shape, TransformerConfig):
    tokens = random.integers(
      shape.vocabulary_size, size=(3, shape.sequence_length)
    )
    tokens = tf.constant(tokens, tf.int32)
    return transformer.logits(shape, weights, tokens).numpy()
  images = random.integers(256, size=(3, *shape.image_shape))
  x = dict(
    image=tf.constant(images, tf.uint8), noise_seed=tf.zeros([3, 2], tf.int32)
  )
  model = build_image_model(shape, model_seed=0).functional_model
  return model.predict_on_batch((weights, ()), x, training=False).numpy()


def context_of(shape: ModelShape, settings) -> SolveContext:
  """Returns what a server without validation rows gives a solver."""
  return SolveContext(settings, shape, score=None, seed=0)
