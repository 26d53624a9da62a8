"""Arguments and result of a server solve."""

import typing
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from models.model_shapes import ModelShape
from tff_fedfish.methods import AlgorithmConfig

if typing.TYPE_CHECKING:
  from models.functional_model import ModelSpec


class Upload(NamedTuple):
  """Message of one client."""

  num_examples: int
  weights: tuple[np.ndarray, ...]
  summary: dict[str, np.ndarray]


class SolveContext(NamedTuple):
  """Facts that a solver may use besides the uploads."""

  settings: AlgorithmConfig
  shape: ModelShape
  model: 'ModelSpec'
  score: Callable[[Sequence[np.ndarray]], float] | None
  seed: int


class SolveResult(NamedTuple):
  """Solution of a server solve."""

  weights: tuple[np.ndarray, ...]
  best_step: int | None = None
  residual: float | None = None
