"""Uploads of one-shot methods: kinds, sizes, contents, and a solve's context.

A client uploads its weights after local training, and a summary of its data:

  kind of summary   tensors            shape
  'none'            -                  -
  'class_counts'    class_counts       [classes], int64, rows per class
  'diagonal'        diagonal/0, ...    of each weight, in the model's order
  'gram'            gram/LAYER         [inputs, inputs], of each dense layer
  'kfac'            inputs/LAYER       A, [rows of V, rows of V]
                    gradients/LAYER    G, [columns of V, columns of V]
                    diagonal/LAYER     shape of V, of norms in place of A and G

V is `models.layers.matrix_of`. There is no TensorFlow here, so that sizes are
known at once.
"""

import abc
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from models.layers import Layer, layers_of
from models.model_shapes import ModelShape, num_parameters, weight_shapes
from tff_fedfish.methods.one_shot import compression

Weights = tuple[np.ndarray, ...]

WEIGHTS, CLIENT_WEIGHT, SUMMARY = 'weights', 'client_weight', 'summary'
"""Names of the structures that a client uploads."""


class UploadKind(NamedTuple):
  """Kind of the uploads of a run."""

  summary: Literal['none', 'class_counts', 'diagonal', 'gram', 'kfac'] = 'none'
  """See the module."""
  compression: Literal['none', 'paper'] = 'none'
  """'paper': see `compression.py`."""


def summary_shapes(
  shape: ModelShape, kind: UploadKind
) -> dict[str, tuple[int, ...]]:
  """Returns the shape of every tensor of a summary, by name."""
  if kind.summary == 'class_counts':
    return {'class_counts': (shape.num_classes,)}
  if kind.summary == 'diagonal':
    sizes = weight_shapes(shape).values()
    return {f'diagonal/{i}': size for i, size in enumerate(sizes)}
  if kind.summary == 'gram':
    return {
      f'gram/{layer.name}': (layer.fan_in, layer.fan_in)
      for layer in layers_of(shape)
      if layer.kind == 'matrix'
    }
  return kfac_shapes(layers_of(shape)) if kind.summary == 'kfac' else {}


def kfac_shapes(layers: Sequence[Layer]) -> dict[str, tuple[int, ...]]:
  """Returns the shape of every tensor of some layers' K-FAC summary."""
  shapes = {}
  for layer in layers:
    rows, columns = layer.num_rows, layer.fan_out
    if layer.kind == 'scale':
      shapes[f'diagonal/{layer.name}'] = rows, columns
    else:
      shapes[f'inputs/{layer.name}'] = rows, rows
      shapes[f'gradients/{layer.name}'] = columns, columns
  return shapes


def is_factor(name: str) -> bool:
  """Says whether a tensor of a summary is a symmetric matrix."""
  return name.startswith(('gram/', 'inputs/', 'gradients/'))


def factor_rank(shape: ModelShape, kind: UploadKind) -> int | None:
  """Returns r of `compression.py`, at least 1; None: there are no factors."""
  shapes = summary_shapes(shape, kind)
  num_rows = [sizes[0] for name, sizes in shapes.items() if is_factor(name)]
  if not num_rows:
    return None
  return max(1, 2 * num_parameters(shape) // sum(2 * n + 1 for n in num_rows))


def summary_models(shape: ModelShape, kind: UploadKind) -> float:
  """Returns the entries of a summary per weight of the model."""
  sizes = summary_shapes(shape, kind).values()
  return sum(map(math.prod, sizes)) / num_parameters(shape)


def uploaded_models(shape: ModelShape, kind: UploadKind) -> float:
  """Returns the size of an upload, in models of float32."""
  if kind.summary == 'class_counts':
    # A few scalars are not counted.
    kind = kind._replace(summary='none')
  if kind.compression == 'none':
    return 1 + summary_models(shape, kind)
  d, shapes = num_parameters(shape), summary_shapes(shape, kind)
  bits = d * (compression.MODEL_BITS + 1)
  if kind.summary == 'diagonal':
    # The model's scales. Beside factors the authors do not count them.
    bits += compression.FLOAT_BITS * len(shapes)
  rank = factor_rank(shape, kind)
  for name, sizes in shapes.items():
    if is_factor(name):
      bits += compression.factor_bits(sizes[0], rank)
    else:
      bits += compression.quantized_bits(math.prod(sizes))
  return bits / (compression.FLOAT_BITS * d)


class Upload(NamedTuple):
  """Upload of one client."""

  client_weight: float
  """w_i, > 0."""
  weights: Weights
  """Weights after local training, in the model's order; finite."""
  summary: dict[str, np.ndarray]
  """Tensors by name, as the module lists them."""


class Uploads(Sequence[Upload]):
  """Uploads of a round, read when they are asked for, one at a time."""

  def __init__(self, shape: ModelShape, kind: UploadKind):
    """Takes the model's shape and what its clients uploaded."""
    self._weight_shapes = weight_shapes(shape)
    self._summary = tuple(summary_shapes(shape, kind))

  @abc.abstractmethod
  def read(
    self, index: int, paths: Sequence[str] | None
  ) -> dict[str, np.ndarray]:
    """Returns tensors of a client's upload; None: all.

    Paths are 'client_weight/0'; 'weights/0', 'weights/1' and so on; and
    'summary/0' and so on, in the order of `summary_shapes`.
    """

  def __getitem__(self, index: int) -> Upload:
    tensors = self.read(index, None)
    return Upload(
      float(tensors[f'{CLIENT_WEIGHT}/0']),
      tuple(tensors[f'{WEIGHTS}/{i}'] for i in range(len(self._weight_shapes))),
      {name: tensors[f'{SUMMARY}/{i}'] for i, name in enumerate(self._summary)},
    )

  def __iter__(self) -> Iterator[Upload]:
    return (self[index] for index in range(len(self)))

  def part(
    self, index: int, weights: Sequence[int], summary: Sequence[str]
  ) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Reads only some weights, by position, and summary tensors, by name."""
    of_weights = [f'{WEIGHTS}/{i}' for i in weights]
    of_summary = {n: f'{SUMMARY}/{self._summary.index(n)}' for n in summary}
    tensors = self.read(index, [*of_weights, *of_summary.values()])
    named = {name: tensors[path] for name, path in of_summary.items()}
    return [tensors[path] for path in of_weights], named

  @functools.cached_property
  def shares(self) -> np.ndarray:
    """p_i = w_i / sum w, float64 [clients]."""
    path = f'{CLIENT_WEIGHT}/0'
    weights = [self.read(i, [path])[path] for i in range(len(self))]
    return np.float64(weights) / np.sum(weights, dtype=np.float64)

  def mean(self) -> Weights:
    """Returns w_bar = sum p_i w_i, float32, summed in float64."""
    sums = [np.zeros(sizes) for sizes in self._weight_shapes.values()]
    for index, share in enumerate(self.shares):
      weights, _ = self.part(index, range(len(sums)), ())
      for total, weight in zip(sums, weights, strict=True):
        total += share * weight.astype(np.float64)
    return tuple(total.astype(np.float32) for total in sums)

  def by_name(self, weights: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Returns weights of the model by name."""
    return dict(zip(self._weight_shapes, weights, strict=True))


class SolveContext(NamedTuple):
  """Arguments of a solve besides the uploads."""

  shape: ModelShape
  score: Callable[[Sequence[np.ndarray]], float] | None = None
  """Accuracy of weights on the server's validation rows, in [0, 1]. None: the
  server has none."""
  seed: int = 0
  """Seed of what the solve draws."""
  uncompressed_mean: Weights | None = None
  """sum p_i w_i of the weights before compression. None: uploads are not
  compressed, or nobody knows it."""


class SolveResult(NamedTuple):
  """Result of a solve."""

  weights: Weights
  """In the model's order, float32."""
  best_step: int | None = None
  """Step whose weights were kept. None: the solve has no steps."""
  residual: float | None = None
  """Relative norm of the gradient that is left. None: not a quadratic."""
  measurements: Mapping[str, Sequence[float]] = {}
  """Values by step, such as losses, by name."""


class Best:
  """The weights that score best of those visited; without a score the last."""

  def __init__(self, score: Callable[[Sequence[np.ndarray]], float] | None):
    self._score, self._best_score = score, -1.0
    self.step, self.weights = None, None

  def visit(self, step: int | None, weights: Sequence[np.ndarray]) -> None:
    """Looks at the weights after a step; of equal scores the first is best."""
    if self._score is not None:
      score = self._score(weights)
      if not score > self._best_score:
        return
      self._best_score = score
    self.step = step
    self.weights = tuple(np.array(w, np.float32) for w in weights)


def fisher_sums(
  uploads: Uploads, start: Weights
) -> tuple[list[np.ndarray], list[np.ndarray]]:
  """Returns (sum_i p_i F_i, sum_i p_i F_i w_i) of diagonals, in one pass.

  Float32 arrays in the order of the weights; `start` has their shapes.
  """
  mass, weighted = ([np.zeros_like(w) for w in start] for _ in range(2))
  for share, upload in zip(uploads.shares, uploads, strict=True):
    fishers = upload.summary.values()
    for m, s, fisher, w in zip(
      mass, weighted, fishers, upload.weights, strict=True
    ):
      fisher = float(share) * fisher
      m += fisher
      s += fisher * w
  return mass, weighted
