"""The interface of a server solve: uploads and context in, weights out.

A one-shot method's module here has `solve(uploads, start, context)`, a
deterministic function of its arguments; `start` is the mean of the uploaded
models, sum p_i w_i.
"""

import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from models.model_shapes import ModelShape, weight_shapes
from tff_fedfish.errors import UserError
from tff_fedfish.methods.one_shot import upload_sizes
from tff_fedfish.methods.settings import AlgorithmConfig
from tff_fedfish.run import client_state_files

WEIGHTS, CLIENT_WEIGHT, SUMMARY = 'weights', 'client_weight', 'summary'
"""Names of the structures that a client uploads."""


class Upload(NamedTuple):
  """Upload of one client."""

  client_weight: float
  """w_i, > 0."""
  weights: tuple[np.ndarray, ...]
  """Weights after local training, in the model's order."""
  summary: dict[str, np.ndarray]
  """Tensors by name, see `client_summaries.py`."""


class Uploads(Sequence[Upload]):
  """Uploads of a round, read from disk when they are asked for, one at a time.

  In the order of the client ids. A file is checked when it is first read.
  """

  def __init__(
    self,
    directory: pathlib.Path,
    shape: ModelShape,
    upload: upload_sizes.Upload,
  ):
    """Reads the manifest in the directory of a round.

    Raises:
      UserError: If it cannot be read. Whatever reads a file raises it where
        that is not as it was written, or of another model.
    """
    self._directory = directory
    summary = upload_sizes.summary_shapes(shape, upload)
    self._summary_names = tuple(summary)
    self._weight_shapes = tuple(weight_shapes(shape).values())
    self._shapes = {f'{CLIENT_WEIGHT}/0': ()}
    for name, sizes in (
      (WEIGHTS, self._weight_shapes),
      (SUMMARY, summary.values()),
    ):
      self._shapes |= {f'{name}/{i}': size for i, size in enumerate(sizes)}
    try:
      found = client_state_files.read_manifest(directory)
    except (OSError, ValueError) as error:
      raise UserError(
        f'The uploads in {str(directory)!r} cannot be read ({error}). '
        f'{client_state_files.ADVICE}'
      ) from error
    self._entries = [found[name] for name in sorted(found)]
    self._is_checked = [False] * len(found)
    self.client_ids = [bytes.fromhex(name) for name in sorted(found)]
    self.num_bytes = sum(entry.num_bytes for entry in found.values())

  def __len__(self) -> int:
    return len(self._entries)

  def __getitem__(self, index: int) -> Upload:
    tensors = self._tensors(index)
    of = {WEIGHTS: [], SUMMARY: []}
    for name in sorted(tensors, key=_position):
      of.get(name.partition('/')[0], []).append(tensors[name])
    return Upload(
      float(tensors[f'{CLIENT_WEIGHT}/0']),
      tuple(of[WEIGHTS]),
      dict(zip(self._summary_names, of[SUMMARY], strict=True)),
    )

  def __iter__(self) -> Iterator[Upload]:
    return (self[index] for index in range(len(self)))

  def part(
    self, index: int, weights: Sequence[int], summary: Sequence[str]
  ) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Returns some weights, by position, and tensors of a summary, by name.

    The rest is not read.
    """
    of_weights = [f'{WEIGHTS}/{i}' for i in weights]
    of_summary = [f'{SUMMARY}/{self._summary_names.index(n)}' for n in summary]
    found = self._tensors(index, [*of_weights, *of_summary])
    return [found[name] for name in of_weights], {
      name: found[path] for name, path in zip(summary, of_summary, strict=True)
    }

  def check(self) -> None:
    """Reads every file that was not read yet, and nothing into memory."""
    for index in range(len(self)):
      self._tensors(index, [])

  @functools.cached_property
  def shares(self) -> np.ndarray:
    """p_i = w_i / sum w, float64 [clients]."""
    weights = [
      self._tensors(i, [f'{CLIENT_WEIGHT}/0'])[f'{CLIENT_WEIGHT}/0']
      for i in range(len(self))
    ]
    return np.float64(weights) / np.sum(weights, dtype=np.float64)

  def mean(self) -> tuple[np.ndarray, ...]:
    """Returns sum p_i w_i, summed in float64."""
    sums = [np.zeros(sizes) for sizes in self._weight_shapes]
    for index, share in enumerate(self.shares):
      weights, _ = self.part(index, range(len(sums)), ())
      for total, weight in zip(sums, weights, strict=True):
        total += share * weight.astype(np.float64)
    return tuple(total.astype(np.float32) for total in sums)

  def _tensors(self, index, names=None):
    entry = self._entries[index]
    path = self._directory / entry.file
    if not self._is_checked[index]:
      client_id = self.client_ids[index]
      client_state_files.require_as_written(client_id, path, entry, 'upload')
      client_state_files.require_shapes(client_id, path, self._shapes, 'upload')
      self._is_checked[index] = True
    return client_state_files.read(path, names)


def _position(name):
  return int(name.rpartition('/')[2])


class SolveContext(NamedTuple):
  """Arguments of a solve besides the uploads."""

  settings: AlgorithmConfig
  """The method's settings."""
  shape: ModelShape
  score: Callable[[Sequence[np.ndarray]], float] | None
  """Accuracy of weights on the server's validation rows, in [0, 1]. None: the
  server has none."""
  seed: int
  """Seed of what the solve draws."""


class SolveResult(NamedTuple):
  """Result of a solve."""

  weights: tuple[np.ndarray, ...]
  """In the model's order, float32."""
  best_step: int | None = None
  """Step whose weights were kept. None: the solve has no steps."""
  residual: float | None = None
  """Relative norm of the gradient that is left. None: not a quadratic."""
  measurements: Mapping[str, Sequence[float]] = {}
  """Values by step, such as losses, by name."""


Solve = Callable[[Uploads, tuple[np.ndarray, ...], SolveContext], SolveResult]
"""A method's solve."""
