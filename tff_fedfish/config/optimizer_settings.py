"""Settings of an optimizer and of its learning rate, for client and server."""

import dataclasses
from typing import Literal, get_args

from tff_fedfish.config_fields import Section, number

# Setting -> optimizers that read it; all read what is not listed.
_READERS = {
  'momentum': ('sgd',),
  'nesterov': ('sgd',),
  'beta_1': ('adam', 'adamw', 'yogi'),
  'beta_2': ('adam', 'adamw', 'yogi'),
  'epsilon': ('adagrad', 'adam', 'adamw', 'yogi'),
  'bias_correction': ('adam',),
  'initial_accumulator': ('adagrad', 'adam', 'yogi'),
  'weight_decay': ('adamw',),
  'weight_decay_on': ('adamw',),
}
_OF_SCHEDULES = ('schedule_rounds', 'final_fraction')


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSettings(Section):
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
  learning_rate x weight_decay x weights, at the learning rate of the round."""
  weight_decay_on: Literal['matrices', 'all'] = 'matrices'
  """Weights that decay: matrices and kernels of higher rank, without biases and
  norms; or all."""
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
    fields = {field.name: field for field in dataclasses.fields(self)}
    problems = [
      f'`{section}.{name}` is read with {reader} only, found {value!r}; '
      'leave it out'
      for name, reader in unread_settings(self).items()
      if (value := getattr(self, name)) != fields[name].default
      and not self._may_keep(name)
    ]
    if self.optimizer == 'sgd' and self.nesterov is True:
      if self.momentum == 0:
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

  def _may_keep(self, name):
    """Says whether runs of earlier versions may have set what is not read."""
    return (
      self.section == 'server'
      and self.optimizer == 'sgd'
      and name in ('beta_1', 'beta_2', 'epsilon')
    )

  @property
  def varies_learning_rate(self) -> bool:
    """Whether rounds have different learning rates."""
    return self.learning_rate_schedule != 'constant' or self.warmup_rounds > 0


def unread_settings(settings: OptimizerSettings) -> dict[str, str]:
  """Returns the settings that an optimizer and its schedule do not read.

  Args:
    settings: A section. Where its optimizer is unknown, that of no optimizer.

  Returns:
    Name -> what would read it.
  """
  choices = get_args(type(settings).__annotations__['optimizer'])
  chosen, unread = settings.optimizer, {}
  for name, readers in _READERS.items():
    if chosen in choices and hasattr(settings, name) and chosen not in readers:
      known = [repr(reader) for reader in readers if reader in choices]
      unread[name] = f'optimizer {_either(known)}'
  if chosen == 'adam' and settings.corrects_bias:
    unread['initial_accumulator'] = (
      "optimizer 'adagrad' or 'yogi', or 'adam' with bias_correction false"
    )
  if settings.learning_rate_schedule == 'constant':
    for name in _OF_SCHEDULES:
      unread[name] = "learning_rate_schedule 'cosine' or 'exponential'"
  return unread


def _either(names):
  *others, last = names
  return f'{", ".join(others)} or {last}' if others else last
