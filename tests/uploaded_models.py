"""Uploads of models with random weights, for tests of one-shot solvers."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from models import transformer
from models.functional_model import build_image_model
from models.image_models import initial_weights
from models.model_shapes import ModelShape, weight_shapes
from models.transformer_config import TransformerConfig
from tff_fedfish.methods.one_shot import OneShot
from tff_fedfish.methods.one_shot.permutations import (
  PermutationGroup,
  permutation_groups,
  take_units,
)
from tff_fedfish.methods.one_shot.uploads import (
  SolveContext,
  SolveResult,
  UploadKind,
  Uploads,
)

WeightsByName = Mapping[str, np.ndarray]


class ListedUploads(Uploads):
  """Uploads in memory."""

  def __init__(
    self,
    shape: ModelShape,
    summary: str,
    client_weights: Sequence[float],
    models: Sequence[Sequence[np.ndarray]],
    summaries: Sequence[Sequence[np.ndarray]] | None = None,
  ):
    """Takes the weights and the tensors of the summary of every client."""
    super().__init__(shape, UploadKind(summary))
    self._clients = []
    for i, client_weight in enumerate(client_weights):
      tensors = {'client_weight/0': np.float32(client_weight)}
      for j, weight in enumerate(models[i]):
        tensors[f'weights/{j}'] = np.asarray(weight, np.float32)
      for j, tensor in enumerate(summaries[i] if summaries else ()):
        tensors[f'summary/{j}'] = np.asarray(tensor)
      self._clients.append(tensors)
    self.num_read = 0

  def __len__(self):
    return len(self._clients)

  def read(self, index, paths):
    """See `Uploads.read`; counts reads of whole uploads."""
    self.num_read += paths is None
    tensors = self._clients[index]
    return tensors if paths is None else {path: tensors[path] for path in paths}


def solve(
  uploads: Uploads,
  shape: ModelShape,
  method: type[OneShot],
  *,
  score=None,
  uncompressed_mean=None,
  seed: int = 0,
  **settings,
) -> SolveResult:
  """Solves as a server does, from the mean of the uploads."""
  context = SolveContext(shape, score, seed, uncompressed_mean)
  return method(**settings).solve(uploads, uploads.mean(), context)


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
    weights = take_units(weights, group, random_permutation(group, random))
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
