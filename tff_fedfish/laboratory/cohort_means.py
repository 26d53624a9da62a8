"""The means of a cohort's model deltas, and what tells them apart.

The means are computed by the aggregator's own functions.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from tff_fedfish import fisher, fisher_diagonal
from tff_fedfish.algorithms.slots.fisher_weighted_mean import (
  DeltaAndFisher,
  FisherWeightedMeanFactory,
)
from tff_fedfish.laboratory.weightings import PLAIN_MEAN, Weighting
from tff_fedfish.mathematics import directions

Tensors = tuple[np.ndarray, ...]


class TrainedClient(Protocol):
  """A client of the cohort: its update, and how much data it has.

  `delta` and `diagonal`, F summed over batches, are read when they are asked
  for.
  """

  weight: float
  """w_i, > 0."""
  num_batches: int
  """Squared gradients in the diagonal."""

  @property
  def delta(self) -> Tensors:
    """Initial minus final weights, float32."""

  @property
  def diagonal(self) -> Tensors:
    """The Fisher diagonal, float32, shaped like the weights."""


@dataclasses.dataclass
class Cohort:
  """The trained clients of one round, and the means of their deltas."""

  clients: Sequence[TrainedClient]
  """At least one; those without weight left out."""
  _: dataclasses.KW_ONLY
  relative_floor: float
  """See `fisher.fisher_weighted_terms`."""
  makes_logits: tuple[bool, ...] = ()
  """As of `ModelSpec`; (): no language model."""

  def __len__(self) -> int:
    return len(self.clients)

  @functools.cached_property
  def plain_mean(self) -> Tensors:
    """FedAvg's mean."""
    return self.mean(PLAIN_MEAN)

  def mean(self, weighting: Weighting) -> Tensors:
    """Returns the pseudo-gradient g; the server subtracts it from the model."""
    if weighting.is_plain_mean:
      # F = 1 for all.
      factory = FisherWeightedMeanFactory(0.0)
      clients = (
        (DeltaAndFisher(c.delta, tuple(map(np.ones_like, c.delta))), c.weight)
        for c in self.clients
      )
      return _arrays(factory.mean(clients))
    flags = self._flags(weighting)
    factory = FisherWeightedMeanFactory(
      self.relative_floor,
      plain_mean_fraction=weighting.plain_mean_fraction,
      takes_plain_mean=flags,
    )
    updates = (
      (
        DeltaAndFisher(
          client.delta,
          tuple(
            diagonal
            for diagonal, is_plain in zip(diagonals, flags, strict=True)
            if not is_plain
          ),
        ),
        tf.constant(client.weight, tf.float32),
      )
      for client, diagonals in self._weighed_by(weighting)
    )
    mean = _arrays(factory.mean(updates))
    if weighting.step_length == 'own':
      return mean
    return tuple(
      tensor * _ratio(np.linalg.norm(plain), np.linalg.norm(tensor))
      for tensor, plain in zip(mean, self.plain_mean, strict=True)
    )

  def compare(self, weighting: Weighting, mean: Tensors) -> dict[str, float]:
    """Returns what tells the mean of a weighting from the plain one.

    Returns:
      `cosine` to the plain mean and `norm_ratio`, over all weights;
      `split_half_cosine` between the means of two halves of the cohort, NaN
      with fewer than four clients; `effective_clients`, see there, and
      `null_effective_clients`, the same where chance only tells clients'
      squared gradients apart.
    """
    plain = self.plain_mean
    split_half = np.nan
    if len(self) >= 4:
      halves = (
        dataclasses.replace(self, clients=self.clients[start::2])
        for start in (0, 1)
      )
      split_half = directions.cosine(*(half.mean(weighting) for half in halves))
    return {
      'cosine': directions.cosine(mean, plain),
      'norm_ratio': directions.norm_ratio(mean, plain),
      'split_half_cosine': split_half,
      'effective_clients': self._effective_clients(weighting),
      'null_effective_clients': self._null_effective_clients(weighting),
    }

  def _flags(self, weighting):
    if weighting.plain_mean_tensors == 'logits':
      return self.makes_logits
    return (False,) * len(self.clients[0].delta)

  def _weighed_by(self, weighting) -> Iterator[tuple[TrainedClient, Tensors]]:
    """Yields clients, each with the F^p by which its delta is weighed."""
    shift = weighting.fisher_of == 'another'
    for i, client in enumerate(self.clients):
      source = self.clients[(i + shift) % len(self)]
      sums = fisher_diagonal.FisherSums(
        source.diagonal, tf.constant(1, tf.int64)
      )
      yield (
        client,
        _arrays(
          fisher_diagonal.fisher_diagonal_from_sums(
            sums,
            'sum',
            weighting.fisher_normalization,
            weighting.fisher_power,
          )
        ),
      )

  def _effective_clients(self, weighting):
    """Returns 1 / sum a_i^2, its mean over informed coordinates.

    a_i is the client's part in the mean of a coordinate, before the floor.
    Coordinates in which no client has Fisher mass are left out.
    """
    weight_sum = sum(client.weight for client in self.clients)
    if weighting.is_plain_mean:
      squares = sum(client.weight**2 for client in self.clients)
      return weight_sum**2 / squares
    totals = None
    for client, diagonals in self._weighed_by(weighting):
      masses = self._masses(weighting, client, diagonals)
      totals = masses if totals is None else list(map(np.add, totals, masses))
    squares = [np.zeros_like(total) for total in totals]
    for client, diagonals in self._weighed_by(weighting):
      masses = self._masses(weighting, client, diagonals)
      for square, mass, total in zip(squares, masses, totals, strict=True):
        square += np.square(
          _part(mass, total, client.weight / weight_sum, weighting)
        )
    informed = [np.asarray(total > 0) for total in totals]
    inverses = sum(
      (1 / square[has_mass]).sum()
      for square, has_mass in zip(squares, informed, strict=True)
    )
    return _ratio(inverses, sum(map(np.count_nonzero, informed)))

  def _masses(self, weighting, client, diagonals):
    """Returns w F^p, or w in a tensor that takes the plain mean; float64."""
    flags = self._flags(weighting)
    return [
      np.full_like(f, client.weight, np.float64)
      if is_plain
      else client.weight * np.asarray(f, np.float64)
      for f, is_plain in zip(diagonals, flags, strict=True)
    ]

  def _null_effective_clients(self, weighting):
    """Returns the same where only chance tells gradients apart."""
    if weighting.is_plain_mean:
      return self._effective_clients(weighting)
    return fisher.effective_clients_by_chance(
      np.array([client.weight for client in self.clients]),
      np.array([client.num_batches for client in self.clients]),
      power=weighting.fisher_power,
      plain_mean_fraction=weighting.plain_mean_fraction,
      has_tensor_mean=weighting.fisher_normalization == 'tensor_mean',
    )


def _part(mass, mass_sum, plain_part, weighting):
  """Returns a client's part in the mean of each coordinate."""
  fraction = weighting.plain_mean_fraction
  part = np.divide(mass, mass_sum, out=np.zeros_like(mass), where=mass_sum > 0)
  return fraction * plain_part + (1 - fraction) * part


def _arrays(tensors) -> Tensors:
  return tuple(np.asarray(tensor) for tensor in tensors)


def _ratio(numerator, denominator):
  return float(numerator / denominator) if denominator else 0.0
