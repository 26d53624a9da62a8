"""Settings of a client's work and of the server's step: each an optimizer's."""

import dataclasses
from typing import Literal, NamedTuple, get_args

from tff_fedfish.config_fields import Section, number

# Setting -> optimizers that read it; all read what is not listed.
_READERS = {
  'momentum': ('sgd',),
  'nesterov': ('sgd',),
  'beta_1': ('adam', 'adamw', 'yogi'),
  'beta_2': ('adam', 'adamw', 'yogi'),
  'epsilon': ('adagrad', 'adam', 'adamw', 'yogi'),
  'bias_correction': ('adam',),
  'weight_decay': ('adamw',),
}
_OF_SCHEDULES = ('schedule_rounds', 'final_fraction')
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

  momentum: float = number(0.0, at_least=0, below=1)
  """Momentum of 'sgd', in [0, 1). 0: none."""
  nesterov: bool = False
  """Uses Nesterov's form of the momentum of 'sgd'."""
  beta_1: float = number(0.9, at_least=0, below=1)
  """Decay of the first moment of 'adam', 'adamw' and 'yogi', in [0, 1). Adagrad
  has no first moment."""
  beta_2: float = number(0.999, at_least=0, below=1)
  """Decay of the second moment of 'adam', 'adamw' and 'yogi', in [0, 1)."""
  epsilon: float = number(1e-7, above=0)
  """Added to the root of the second moment, > 0. 'adam' and 'adamw' add it
  before the bias correction, as TFF and Keras do: at step t it acts as epsilon
  / sqrt(1 - beta_2^t) does in Kingma and Ba's form, with beta_2 0.999 31.6
  times as large at step 1 and 3.2 times at step 100. 'adagrad', 'yogi' and
  'adam' without bias correction: tau of Reddi et al. (2021), 1e-3 there."""
  weight_decay: float = number(0.0, at_least=0)
  """Decoupled weight decay of 'adamw', >= 0: a step also subtracts
  learning_rate x weight_decay x weights, at the learning rate of the round.
  Matrices and kernels of higher rank decay; biases and norms do not."""
  max_gradient_norm: float | None = number(None, above=0)
  """Bound on the global L2 norm of each gradient that the optimizer is given (a
  client's batch gradient, the server's pseudo-gradient), > 0. None: no
  bound."""
  learning_rate_schedule: Literal['constant', 'cosine', 'exponential'] = (
    'constant'
  )
  """Learning rate after warm-up, per round t from its end: constant; or falling
  from the base rate to final_fraction of it at t = schedule_rounds, along a
  half cosine or by the same factor each round, and constant from then on."""
  warmup_rounds: int = number(0, at_least=0)
  """Rounds W of linear warm-up, >= 0: round r <= W has r / W of the base
  rate."""
  schedule_rounds: int | None = number(None, at_least=1)
  """Rounds that 'cosine' and 'exponential' take, >= 1, after warm-up; required
  by both. May not change when a run is resumed; `training.num_rounds` may."""
  final_fraction: float | None = number(None, at_least=0, at_most=1)
  """Fraction of the base rate at which 'cosine' and 'exponential' end, in [0,
  1]. 'exponential' requires it, above 0. None: 0 with 'cosine', whose last
  schedule round then changes nothing."""

  def cross_problems(self, *, are_fields_right: bool) -> list[str]:
    """See `Section`."""
    section = f'config.{self.section}'
    schedule = self.learning_rate_schedule
    chosen = f'learning_rate_schedule {schedule!r}'
    changed = self.changed()
    problems = [
      f'`{section}.{name}` is read with {reader} only, found '
      f'{changed[name]!r}; leave it out'
      for name, reader in unread_settings(self).items()
      if name in changed
    ]
    keeps = getattr(self, 'keeps_optimizer_state', False)
    if keeps is True and self.optimizer == 'sgd' and self.momentum == 0:
      problems.append(
        f'`{section}.keeps_optimizer_state` must be false with optimizer '
        "'sgd' without momentum, which has no moments, found true"
      )
    uses_nesterov = self.optimizer == 'sgd' and self.nesterov is True
    if uses_nesterov and self.momentum == 0:
      problems.append(
        f'`{section}.momentum` must be above 0 with nesterov true, found '
        f'{self.momentum}'
      )
    if schedule in ('cosine', 'exponential') and self.schedule_rounds is None:
      problems.append(f'`{section}.schedule_rounds` is required with {chosen}')
    if schedule == 'exponential':
      if self.final_fraction is None:
        problems.append(f'`{section}.final_fraction` is required with {chosen}')
      elif self.final_fraction == 0:
        problems.append(
          f'`{section}.final_fraction` must be above 0 with {chosen}, found 0.0'
        )
    return problems

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
  """Whether clients keep the optimizer's moments between rounds, as DiLoCo's
  workers do. False: moments start from zero each round. Takes disk, see
  `client_states/` on disk."""
  num_local_epochs: int = number(at_least=1)
  """Passes over the client's sequences per round. Unit: epochs, >= 1."""
  local_batch_size: int = number(4, at_least=1)
  """Sequences per local step, >= 1."""
  max_sequences_per_client: int | None = number(16, at_least=1)
  """Cap per client and round, after that round's shuffle, >= 1. None: all."""
  num_local_steps: int | None = number(None, at_least=1, below=10**7)
  """Local steps H per round, >= 1 and below 10^7. Each round takes the next H
  batches of the client's endless stream of shuffled passes. Requires
  num_local_epochs 1 and max_sequences_per_client None, and H times
  local_batch_size at most 10^8. None: the steps of num_local_epochs passes."""
  learning_rate: float = number(above=0)
  """Base learning rate of the client optimizer, > 0."""
  micro_batch_size: int | None = number(None, at_least=1)
  """Sequences of a batch that pass through the model at a time, >= 1; their
  gradients are averaged over the batch. Saves memory. `None`: all."""
  max_delta_norm: float | None = number(None, above=0)
  """Bound on the L2 norm of a client's model delta over all weights, > 0; a
  longer delta is scaled down to it. None: no bound."""

  @property
  def max_rows(self) -> int | None:
    """Sequences of a client in a round, at most; None: all that it has."""
    if self.num_local_steps is None:
      return self.max_sequences_per_client
    return self.num_local_steps * self.local_batch_size

  @property
  def max_batch_rows(self) -> int:
    """Sequences of a batch, at most."""
    return min(self.local_batch_size, self.max_rows or self.local_batch_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerConfig(OptimizerSettings, section='server'):
  """The server optimizer, which takes the pseudo-gradient as its gradient."""

  optimizer: Literal['adam', 'sgd', 'adagrad', 'adamw', 'yogi'] = 'adam'
  """The server optimizer. 'adagrad', 'yogi' and, with bias_correction false,
  'adam' are FedOpt's of Reddi et al. (2021), algorithm 2."""
  learning_rate: float = number(above=0)
  """Base learning rate of the server optimizer, > 0."""
  bias_correction: bool | None = None
  """Whether 'adam' corrects the bias of its moments; others must leave it out.
  None: true with 'adam'."""

  @property
  def corrects_bias(self) -> bool:
    """Whether 'adam' corrects the bias of its moments."""
    return self.bias_correction is not False


def unread_settings(settings: OptimizerSettings) -> dict[str, str]:
  """Returns what would read each unread setting of a section, by name.

  A setting is unread if the schedule, or the optimizer where it is a known one,
  ignores it.
  """
  choices = get_args(type(settings).__annotations__['optimizer'])
  chosen, unread = settings.optimizer, {}
  for name, readers in _READERS.items():
    if chosen in choices and hasattr(settings, name) and chosen not in readers:
      known = [repr(reader) for reader in readers if reader in choices]
      unread[name] = f'optimizer {_either(known)}'
  if settings.learning_rate_schedule == 'constant':
    for name in _OF_SCHEDULES:
      unread[name] = "learning_rate_schedule 'cosine' or 'exponential'"
  return unread


def _either(names):
  *others, last = names
  return f'{", ".join(others)} or {last}' if others else last


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
