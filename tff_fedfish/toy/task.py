"""The regression that two clients share, and what each of them sees of it.

The setting of figure 2 of Dhawan et al. (2024), "Leveraging function space
aggregation for federated learning at scale": one target, two clients whose
inputs overlap fully, in part, or not at all. The paper prints neither the
target nor any setting; those here are ours.
"""

import dataclasses

import numpy as np

from tff_fedfish.data import randomness
from tff_fedfish.errors import UserError

SUPPORTS = {
  'full': ((-2.0, 2.0), (-2.0, 2.0)),
  'partial': ((-2.0, 0.5), (-0.5, 2.0)),
  'none': ((-2.0, -0.5), (0.5, 2.0)),
}
"""Intervals of either client's inputs, by how far they overlap."""

TARGET = 'sin(3x) + 0.3x'
"""The target function, for people."""

GRID = np.linspace(-2.2, 2.2, 221, dtype=np.float32)
"""Inputs at which the functions are drawn, a little beyond the data."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToySettings:
  """The task, the model, and what the clients do in the one round."""

  num_seeds: int = 10
  """How often all is drawn: seeds 0, 1, ...; >= 1."""
  num_examples: int = 100
  """Examples of each client, >= 1."""
  noise: float = 0.05
  """Standard deviation of the targets around the function, >= 0."""
  hidden_widths: tuple[int, ...] = (64, 64)
  """Units of the hidden layers, each >= 1."""
  num_local_steps: int = 500
  """Full-batch steps of each client, >= 0."""
  learning_rate: float = 0.005
  """Learning rate of the clients' Adam, > 0."""
  relative_floor: float = 1e-8
  """See `fisher.fisher_weighted_terms`."""

  def __post_init__(self):
    if self.num_seeds < 1:
      raise UserError(
        f'`--num_seeds` must be at least 1, found {self.num_seeds}. Say how '
        'many times to draw data and weights, such as 10.'
      )


def target(inputs: np.ndarray) -> np.ndarray:
  """Returns the target function without noise, sin(3x) + 0.3x."""
  return np.sin(3.0 * inputs) + 0.3 * inputs


def draw_clients(
  seed: int, support: str, settings: ToySettings
) -> tuple[np.ndarray, np.ndarray]:
  """Draws the data of both clients.

  With one seed the supports differ in nothing else: the same uniform numbers
  are stretched to the intervals, and the noise is the same.

  Args:
    seed: Equal seeds give equal data.
    support: A key of `SUPPORTS`.
    settings: How many examples, and how noisy.

  Returns:
    (inputs, targets), both float32 [2, num_examples].
  """
  inputs, targets = [], []
  for client, (low, high) in enumerate(SUPPORTS[support]):
    generator = randomness.generator('toy_data', seed, client)
    places = generator.uniform(size=settings.num_examples)
    noise = settings.noise * generator.standard_normal(settings.num_examples)
    inputs.append(low + (high - low) * places)
    targets.append(target(inputs[-1]) + noise)
  return np.array(inputs, np.float32), np.array(targets, np.float32)
