"""Uploads of clients, and what a solver is given and returns."""

import types
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from models.functional_model import ModelSpec
from models.model_shapes import ModelShape
from tff_fedfish.methods.settings import AlgorithmConfig


class Upload(NamedTuple):
  """One client's upload."""

  num_examples: int
  weights: tuple[np.ndarray, ...]
  summary: dict[str, np.ndarray]


class Uploads(Sequence[Upload]):
  """Uploads in memory, with the clients' shares p_i = n_i / n, float64."""

  def __init__(self, uploads: Sequence[Upload]):
    self._uploads = tuple(uploads)
    sizes = np.array([upload.num_examples for upload in self._uploads], float)
    self.shares = sizes / sizes.sum()

  def __getitem__(self, index):
    return self._uploads[index]

  def __len__(self):
    return len(self._uploads)


class SolveContext(NamedTuple):
  """Everything that a solver needs beside the uploads."""

  settings: AlgorithmConfig
  shape: ModelShape
  model: ModelSpec
  score: Callable[[Sequence[np.ndarray]], float] | None
  seed: int


class SolveResult(NamedTuple):
  """The model that a solver found."""

  weights: tuple[np.ndarray, ...]
  best_step: int | None = None
  residual: float | None = None
  measurements: Mapping[str, np.ndarray] = types.MappingProxyType({})
