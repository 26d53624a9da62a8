"""Differential privacy of one client's DP-SGD: its parameters and epsilon.

Abadi et al. (2016), "Deep learning with differential privacy"; accounting by
Renyi differential privacy, Mironov et al. (2019), "Renyi differential privacy
of the sampled Gaussian mechanism".

  q      probability with which a step takes a row
  sigma  standard deviation of the noise over the clip norm
  T      steps

Two data sets are neighbours if one has one row more. The epsilon of T steps is
that of T Poisson-sampled Gaussian mechanisms; batches that are made otherwise
are not covered.
"""

import functools
from typing import NamedTuple

import numpy as np


class LocalPrivacy(NamedTuple):
  """DP-SGD of a client.

  Attributes:
    clip_norm: C, > 0: bound on the L2 norm of a row's gradient.
    noise_multiplier: sigma, >= 0.
    batch_size: B, >= 1: what a noised sum is divided by, however many rows the
      batch has.
    draws_batches: Whether a client is given the batches of all its steps, drawn
      independently; false: those of one pass over its rows.
  """

  clip_norm: float
  noise_multiplier: float
  batch_size: int
  draws_batches: bool = False


def sampling_rate(batch_size: int, num_rows: int) -> float:
  """Returns q = min(1, B / n), with which a step has B rows on average."""
  return min(1.0, batch_size / num_rows)


@functools.lru_cache(maxsize=2**16)
def epsilon(
  rate: float, noise_multiplier: float, num_steps: int, delta: float
) -> float:
  """Returns epsilon of a number of steps of DP-SGD.

  Args:
    rate: q, in [0, 1].
    noise_multiplier: sigma, > 0.
    num_steps: T, >= 0.
    delta: In (0, 1).

  Returns:
    The smallest epsilon that dp_accounting's RDP accountant finds, >= 0.
  """
  if num_steps == 0 or rate == 0:
    return 0.0
  # Late: only a run with noise needs it.
  from dp_accounting import rdp

  orders, per_step = _rdp_per_step(rate, noise_multiplier)
  return float(rdp.compute_epsilon(orders, num_steps * per_step, delta)[0])


@functools.lru_cache(maxsize=2**16)
def _rdp_per_step(rate, noise_multiplier):
  """Returns the orders and the divergence of one step, which adds up."""
  import dp_accounting
  from dp_accounting import rdp

  accountant = rdp.RdpAccountant(
    neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
  )
  step = dp_accounting.GaussianDpEvent(noise_multiplier)
  accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, step))
  # Rounding makes a tiny divergence negative.
  return accountant.orders, np.maximum(accountant.rdp, 0.0)
