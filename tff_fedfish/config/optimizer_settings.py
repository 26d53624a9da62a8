"""Settings of a client's work and of the server's step: each an optimizer's."""

import dataclasses
from typing import Literal, NamedTuple

from tff_fedfish.fields import SET, Section, number, setting

DEFAULT_LEARNING_RATES = {
  'client_work': {'sgd': 0.1, 'adamw': 1e-3},
  'server': dict(sgd=1.0, adam=1e-3, adamw=1e-3, yogi=1e-2, adagrad=1e-2),
}
"""Learning rates of optimizers that a command line changes, by section; see
docs/optimizers.md."""

_SGD = {'optimizer': ('sgd',)}
_ADAPTIVE = {'optimizer': ('adam', 'adamw', 'yogi')}
_SECOND_MOMENT = {'optimizer': ('adagrad', *_ADAPTIVE['optimizer'])}
_SCHEDULED = {'learning_rate_schedule': ('cosine', 'exponential')}
# Adam's first and second moment: 3 and 4.
_MEAN, _SCALE = 3, 4
# Product with the rate, root, sum, quotient, difference.
_ADAPTIVE_STEP = 5


class OptimizerCost(NamedTuple):
  """Cost of one step, per weight."""

  num_state_tensors: int
  """Float32 numbers that the state keeps for each weight."""
  num_operations: int
  """Additions, products, divisions and roots."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSettings(Section, section='client_work'):
  """The part that `client_work` and `server` have in common.

  Subclasses add `optimizer`, a Literal of names, and `learning_rate`.
  """

  momentum: float = number(0.0, at_least=0, below=1, read_with=_SGD)
  """Momentum of 'sgd'. 0: none."""
  nesterov: bool = setting(False, read_with={'momentum': SET})
  """Uses Nesterov's form of the momentum."""
  beta_1: float = number(0.9, at_least=0, below=1, read_with=_ADAPTIVE)
  """Decay of the first moment."""
  beta_2: float = number(0.999, at_least=0, below=1, read_with=_ADAPTIVE)
  """Decay of the second moment."""
  epsilon: float = number(1e-7, above=0, read_with=_SECOND_MOMENT)
  """Added to the root of the second moment. 'adam' and 'adamw' add it before
  the bias correction (as TFF and Keras do), so early steps are damped more than
  in Kingma and Ba: 31.6 times at step 1 with beta_2 0.999 (docs/optimizers.md).
  'adagrad', 'yogi' and 'adam' without bias correction: tau of Reddi et al.
  (2021), 1e-3 there."""
  weight_decay: float = number(
    0.0, at_least=0, read_with={'optimizer': ('adamw',)}
  )
  """Decoupled weight decay: a step also subtracts learning_rate x weight_decay
  x weights, at the learning rate of the round. Matrices and kernels of higher
  rank decay; biases and norms do not."""
  max_gradient_norm: float | None = number(None, above=0)
  """Bound on the global L2 norm of each gradient that the optimizer is given: a
  client's batch gradient, the server's pseudo-gradient. None: no bound."""
  learning_rate_schedule: Literal['constant', 'cosine', 'exponential'] = (
    'constant'
  )
  """Learning rate per round t after warm-up (docs/optimizers.md): constant, or
  falling from the base rate to final_fraction of it at t = schedule_rounds,
  along a half cosine or by the same factor each round, and constant then."""
  warmup_rounds: int = number(0, at_least=0)
  """Rounds W of linear warm-up: round r <= W has r / W of the base rate."""
  schedule_rounds: int | None = number(
    None, at_least=1, read_with=_SCHEDULED, required=True
  )
  """Rounds of the schedule, after warm-up. May not change when a run is
  resumed, unlike `training.num_rounds`."""
  final_fraction: float | None = number(
    None, at_least=0, at_most=1, read_with=_SCHEDULED
  )
  """Fraction of the base rate at the end of the schedule. 'exponential'
  requires it, above 0. None: 0 with 'cosine', whose last schedule round then
  changes nothing."""

  def step_cost(self) -> OptimizerCost:
    """Returns the cost of one step of the optimizer."""
    num_tensors, num_operations = _cost_without_clipping(self)
    if self.max_gradient_norm is not None:
      # Quotient, square and sum for the norm; quotient and product to scale.
      num_operations += 5
    return OptimizerCost(num_tensors, num_operations)

  @property
  def varies_learning_rate(self) -> bool:
    """Whether rounds have different learning rates."""
    return self.learning_rate_schedule != 'constant' or self.warmup_rounds > 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientWorkConfig(OptimizerSettings):
  """Work of one client in one round."""

  optimizer: Literal['sgd', 'adamw'] = 'sgd'
  """The client optimizer."""
  keeps_optimizer_state: bool = False
  """Keeps the optimizer's moments of each client between rounds, as DiLoCo's
  workers do; takes disk (docs/client_states.md). False: moments start from zero
  each round."""
  num_local_epochs: int = number(at_least=1)
  """Passes over the client's sequences per round. Unit: epochs."""
  local_batch_size: int = number(4, at_least=1)
  """Sequences per local step."""
  max_sequences_per_client: int | None = number(16, at_least=1)
  """Most sequences per client and round, after that round's shuffle. None:
  all."""
  num_local_steps: int | None = number(None, at_least=1, below=10**7)
  """Local steps H per round, in place of passes: each round takes the next H
  batches of the client's endless stream of shuffled passes
  (docs/optimizers.md). Requires num_local_epochs 1 and max_sequences_per_client
  None. None: the steps of num_local_epochs passes."""
  learning_rate: float = number(above=0)
  """Base learning rate of the client optimizer."""
  micro_batch_size: int | None = number(None, at_least=1)
  """Sequences of a batch that pass through the model at a time; their gradients
  are averaged over the batch. Saves memory. None: all."""
  max_delta_norm: float | None = number(None, above=0)
  """Bound on the L2 norm of a client's model delta over all weights; a longer
  delta is scaled down to it, before `aggregation.bits` round it. None: no
  bound."""

  @property
  def max_rows(self) -> int | None:
    """Most sequences of a client in a round; None: all that it has."""
    if self.num_local_steps is None:
      return self.max_sequences_per_client
    return self.num_local_steps * self.local_batch_size

  @property
  def max_batch_rows(self) -> int:
    """Most sequences of a batch."""
    return min(self.local_batch_size, self.max_rows or self.local_batch_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerConfig(OptimizerSettings, section='server'):
  """The server optimizer, which takes the pseudo-gradient as its gradient."""

  optimizer: Literal['adam', 'sgd', 'adagrad', 'adamw', 'yogi'] = 'adam'
  """The server optimizer. 'adagrad', 'yogi' and, with bias_correction false,
  'adam' are FedOpt's of Reddi et al. (2021), algorithm 2."""
  learning_rate: float = number(above=0)
  """Base learning rate of the server optimizer."""
  bias_correction: bool | None = setting(
    None, read_with={'optimizer': ('adam',)}
  )
  """Corrects the bias of Adam's moments. None: true."""

  @property
  def corrects_bias(self) -> bool:
    """Whether 'adam' corrects the bias of its moments."""
    return self.bias_correction is not False


def _cost_without_clipping(settings):
  name = settings.optimizer
  if name == 'sgd':
    # w - rate v; v and, with Nesterov, g + mu v take a product and a sum.
    has_momentum = settings.momentum > 0
    return has_momentum, 2 + 2 * has_momentum + 2 * settings.nesterov
  if name == 'adagrad':
    # Square and sum.
    return 1, 2 + _ADAPTIVE_STEP
  if name == 'adamw':
    decay = 2 if settings.weight_decay else 0
    return 2, _MEAN + _SCALE + _ADAPTIVE_STEP + decay
  num_means = 1
  if name == 'yogi' or not settings.corrects_bias:
    # Without momentum FedOpt's listing keeps no mean.
    num_means = int(settings.beta_1 > 0)
  # Yogi: square, two differences, two products.
  scale = 5 if name == 'yogi' else _SCALE
  return 1 + num_means, _MEAN + scale + _ADAPTIVE_STEP
