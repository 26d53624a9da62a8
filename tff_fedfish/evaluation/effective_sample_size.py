"""How many clients the server's mean of a coordinate is worth in a round.

FedFish weighs clients in every coordinate by w_i F_i. Clients whose loss is
near 0 have gradients near 0 and hardly count, so that a few others may decide:
the mean then is as noisy as that over these few.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from models.model_shapes import weight_shapes
from tff_fedfish import fisher
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.methods import method

ClientMass = Callable[[Any, tf.Tensor, Any], Sequence[tf.Tensor]]
"""(update, w_i, aggregator state) -> mass by which the client's delta is
weighed, float32, one tensor for each trainable tensor."""


def client_mass_of(config: TrainConfig) -> ClientMass:
  """Returns the mass function of a config's method.

  Args:
    config: The run's config. If its method declares no `client_mass`, the mass
      is the client weight, one scalar for each trainable tensor.
  """
  path = config.method.client_mass
  if path is not None:
    return method.load(path)(config)
  num_tensors = len(weight_shapes(config.model_shape()))
  return lambda update, client_weight, state: [client_weight] * num_tensors


def informed_mass_of(config: TrainConfig) -> ClientMass:
  """Returns `client_mass_of` without the method's `relative_floor`, if any.

  A floor gives mass to coordinates in which no client is informed, and there
  makes clients alike.
  """
  if hasattr(config.algorithm, 'relative_floor'):
    config = config.with_values('algorithm', relative_floor=0.0)
  return client_mass_of(config)


def num_squares(config: TrainConfig, num_rows: int) -> int | None:
  """Returns the squared gradients in the diagonal of a client's rows.

  None where the method squares none, or not each of them once.
  """
  cost = config.method.cost(config)
  if cost.pass_after_training == 'rows':
    return num_rows
  if cost.pass_after_training == 'batches' or cost.squares_last_epoch:
    return -(-num_rows // config.client_work.local_batch_size)
  return None


def by_chance_of(config: TrainConfig) -> Callable[..., float]:
  """Returns `fisher.effective_clients_by_chance` of a config's method."""
  settings = config.algorithm
  return functools.partial(
    fisher.effective_clients_by_chance,
    power=getattr(settings, 'fisher_power', 1.0),
    has_tensor_mean=(
      getattr(settings, 'fisher_normalization', 'none') == 'tensor_mean'
    ),
    is_mean_of_squares=getattr(settings, 'fisher_reduction', 'sum') == 'mean',
  )


class EffectiveClients:
  """Adds up the mass of a round's clients, one after the other.

  Takes 16 bytes of the host's memory for each coordinate: sums of squares of
  diagonals around 1e-12, or of a model that diverges, need float64.
  """

  def __init__(
    self,
    client_mass: ClientMass,
    names: Sequence[str],
    aggregator_state: Any = (),
    *,
    by_chance: Callable[..., float] = fisher.effective_clients_by_chance,
  ):
    """Starts without clients.

    The mass has as many tensors as there are names. The state is that of the
    process's aggregator before the round. See `by_chance_of` for `by_chance`.
    """
    self._by_chance = by_chance
    self._names = tuple(names)
    # Sum and sum of squares of each tensor's mass.
    self._sums: list[tuple[np.ndarray, np.ndarray]] | None = None
    # The mean mass of each tensor, w_i and the squares of each client.
    self._clients: list[tuple[list[float], float, int | None]] = []
    # Of each tensor: whether all clients weigh w_i in it, as in a plain mean.
    self._is_plain = [True] * len(self._names)

    @tf.function
    def finite_mass(update, client_weight):
      mass = tf.nest.flatten(
        client_mass(update, client_weight, aggregator_state)
      )
      is_finite = tf.reduce_all(
        [tf.reduce_all(tf.math.is_finite(m)) for m in mass]
      )
      has_weight = tf.logical_and(client_weight > 0, is_finite)
      return [tf.where(has_weight, m, 0.0) for m in mass]

    self._finite_mass = finite_mass

  def add(
    self, update: Any, client_weight: float, num_squares: int | None = None
  ) -> None:
    """Adds a client by what it gives to the aggregator, and w_i >= 0.

    One of weight 0 has no mass. See `num_squares` for its squares.

    Raises:
      UserError: If `client_mass` returns more or fewer tensors than names.
    """
    found = self._finite_mass(
      # Scalars too are then arguments, not constants of another graph.
      tf.nest.map_structure(tf.convert_to_tensor, update),
      tf.constant(client_weight, tf.float32),
    )
    if len(found) != len(self._names):
      raise UserError(
        "The method's `client_mass` must return one tensor for each of the "
        f'{len(self._names)} trainable tensors, but returns {len(found)}. '
        'Correct it.'
      )
    if self._sums is None:
      self._sums = [(np.zeros(m.shape), np.zeros(m.shape)) for m in found]
    means, plain = [], []
    for (mass_sum, squared_sum), mass in zip(self._sums, found, strict=True):
      mass_sum += mass.numpy()
      squared_sum += np.square(mass.numpy(), dtype=np.float64)
      means.append(float(np.mean(mass.numpy(), dtype=np.float64)))
      plain.append(bool(np.all(mass.numpy() == np.float32(client_weight))))
    if any(means):
      self._is_plain = [*map(all, zip(self._is_plain, plain, strict=True))]
      self._clients.append((means, float(client_weight), num_squares))

  def summary(self) -> dict[str, Any]:
    """Returns `effective_clients` of `summary.json`.

    Returns:
      `mean`: that of `fisher.effective_clients` over the coordinates in which
      any client has mass, and `tensors`: the same for each tensor, by name.
      None where there is no such coordinate. `uninformed_fraction`: share of
      the others. Of the same clients `of_weights`, Kish's size of w_i;
      `of_tensor_means`, that of the clients' mean masses in a tensor, its mean
      over coordinates; and `by_chance`, see
      `fisher.effective_clients_by_chance`, that of w_i in tensors where all
      clients weigh w_i, None where it is not known how many squares a client
      has.
    """
    totals = dict.fromkeys(self._names, 0.0)
    counts = dict.fromkeys(self._names, 0)
    for name, sums in zip(self._names, self._sums or (), strict=False):
      effective = fisher.effective_clients(*sums)
      totals[name] = float(effective.sum())
      counts[name] = int(np.count_nonzero(effective))

    def mean(total, count):
      return total / count if count else None

    sizes = [mass_sum.size for mass_sum, _ in self._sums or ()]
    of_tensors = np.array([means for means, _, _ in self._clients])
    weights = np.array([weight for _, weight, _ in self._clients])
    squares = [number for _, _, number in self._clients]
    by_chance = None
    if squares and None not in squares:
      by_chance = float(
        np.average(
          np.where(
            self._is_plain,
            _kish(weights),
            self._by_chance(weights, np.array(squares)),
          ),
          weights=sizes,
        )
      )
    return {
      'mean': mean(sum(totals.values()), sum(counts.values())),
      'tensors': {n: mean(totals[n], counts[n]) for n in self._names},
      'uninformed_fraction': mean(
        sum(sizes) - sum(counts.values()), sum(sizes)
      ),
      'of_weights': _kish(weights) if len(weights) else None,
      'of_tensor_means': (
        float(np.average(_kish(of_tensors), weights=sizes))
        if len(weights)
        else None
      ),
      'by_chance': by_chance,
    }


def _kish(masses):
  """Returns Kish's effective size over the first axis; 0 without mass."""
  sums = masses.sum(axis=0), np.square(masses).sum(axis=0)
  sizes = fisher.effective_clients(*sums)
  return sizes if sizes.ndim else float(sizes)
