"""Inputs and outputs of all one-shot solvers."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from models.functional_model import ModelSpec
from models.model_shapes import ModelShape
from tff_fedfish.methods.settings import AlgorithmConfig


class Upload(NamedTuple):
  """Everything that one client sends."""

  num_examples: int
  weights: tuple[np.ndarray, ...]
  summary: dict[str, np.ndarray]


class Uploads(Protocol):
  """A sequence of uploads, each read when it is asked for."""

  shares: np.ndarray
  """p_i = n_i / n, float64 [num_clients]; sums to 1."""

  def __len__(self) -> int: ...

  def __getitem__(self, index: int) -> Upload: ...

  def __iter__(self) -> Iterator[Upload]: ...


class SolveContext(NamedTuple):
  """Server-side inputs that are the same for all solvers."""

  settings: AlgorithmConfig
  shape: ModelShape
  model: ModelSpec
  score: Callable[[Sequence[np.ndarray]], float] | None
  seed: int


class SolveResult(NamedTuple):
  """The server's model."""

  weights: tuple[np.ndarray, ...]
  best_step: int | None = None
  residual: float | None = None
