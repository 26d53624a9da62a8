"""Settings of DP-SGD in the client."""

import dataclasses
import typing
from typing import Literal

from tff_fedfish.config_fields import Section, number

if typing.TYPE_CHECKING:
  from tff_fedfish.config.schema import TrainConfig

_MIN_NOISE = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalPrivacyConfig(Section, section='local_privacy'):
  """DP-SGD in the client: gradients of single rows, clipped, with noise."""

  clip_norm: float = number(0.0, at_least=0)
  """Bound C on the L2 norm of the gradient of one row, over all weights. Longer
  gradients are scaled down to it before they are added up. 0: clients train
  without DP-SGD."""
  noise_multiplier: float = number(0.0, at_least=0)
  """Standard deviation of the noise in each sum of clipped gradients, as a
  multiple of `clip_norm`, >= 0. 0: gradients are clipped only."""
  delta: float = number(1e-5, above=0, below=1)
  """Delta at which epsilon is reported, in (0, 1)."""
  sampling: Literal['shuffled', 'poisson'] = 'shuffled'
  """How rows come into batches. 'shuffled': passes over the client's rows; a
  last, smaller batch is dropped. 'poisson': each step takes every row with the
  probability `local_batch_size` / rows, which is what epsilon assumes."""

  def cross_problems(self, *, are_fields_right: bool) -> list[str]:
    """See `Section`."""
    if not are_fields_right:
      return []
    # Less is no privacy, and accounts of it overflow.
    if 0 < self.noise_multiplier < _MIN_NOISE:
      return [
        '`config.local_privacy.noise_multiplier` must be 0 or at least '
        f'{_MIN_NOISE}, found {self.noise_multiplier}'
      ]
    if self.is_on:
      return []
    return [
      f'`config.local_privacy.{name}` is read with clip_norm above 0 only, '
      f'found {value!r}; leave it out'
      for name, value in self.changed().items()
    ]

  @property
  def is_on(self) -> bool:
    """Whether clients train by DP-SGD."""
    return self.clip_norm > 0

  @property
  def adds_noise(self) -> bool:
    """Whether there is an epsilon."""
    return self.noise_multiplier > 0

  @property
  def draws_batches(self) -> bool:
    """Whether batches are drawn, and so may have any number of rows."""
    return self.sampling == 'poisson'


def privacy_problems(config: 'TrainConfig') -> list[str]:
  """Returns a clause for each setting that DP-SGD does not go with."""
  privacy, work, data = config.local_privacy, config.client_work, config.data
  if not privacy.is_on:
    return []
  problems = []

  def refuse(name, wanted, because, found):
    problems.append(
      f'`config.{name}` must be {wanted} with local_privacy, {because}, found '
      f'{found!r}'
    )

  if work.micro_batch_size is not None:
    because = 'which takes one row at a time'
    name = 'client_work.micro_batch_size'
    refuse(name, 'None', because, work.micro_batch_size)
  cap = work.max_sequences_per_client
  if cap is not None and cap < work.local_batch_size:
    because = 'which trains on full batches only'
    wanted = f'at least local_batch_size, {work.local_batch_size},'
    refuse('client_work.max_sequences_per_client', wanted, because, cap)
  if data.sampling != 'blocks':
    because = 'whose unit is a row that is the same in every round'
    refuse('data.sampling', "'blocks'", because, data.sampling)
  if privacy.draws_batches and data.client_batches != 'ragged':
    because = "whose sampling 'poisson' makes its own batches"
    refuse('data.client_batches', "'ragged'", because, data.client_batches)
  if not privacy.draws_batches and data.client_batches == 'repeat_full':
    because = 'as a batch could hold a row twice'
    wanted = "'ragged' or 'full_only'"
    refuse('data.client_batches', wanted, because, data.client_batches)
  if not privacy.draws_batches and work.num_local_steps is not None:
    because = (
      "as a batch could hold a row twice with sampling 'shuffled' (set "
      "`local_privacy.sampling` to 'poisson')"
    )
    name = 'client_work.num_local_steps'
    refuse(name, 'None', because, work.num_local_steps)
  return problems
