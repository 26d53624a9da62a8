"""Words for a model's targets, and numbers as text."""

import dataclasses
from collections.abc import Iterable, Sequence

from tff_fedfish.reporting.estimates import Estimate
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.scores import Sample

PLACES = {'loss': 3, 'accuracy': 2}
"""Decimal places of a measure."""
SCALES = {'loss': 1, 'accuracy': 100}
"""Factor of a measure as shown: accuracies are in percent."""


@dataclasses.dataclass(frozen=True)
class Words:
  """Names of the scores, right for text and for images."""

  unit: str
  """Unit that a loss is per: 'token', 'image', or both."""
  accuracy: str
  """'token accuracy' where all is text, else 'accuracy'."""

  @property
  def loss_label(self) -> str:
    """The loss with its unit."""
    return f'loss (nats per {self.unit})'

  @property
  def accuracy_label(self) -> str:
    """The accuracy with its unit."""
    return f'{self.accuracy} (%)'

  @property
  def metrics(self) -> dict[str, str]:
    """The labels of columns of metrics.csv that are losses and accuracies."""
    return {
      'held_out/loss': f'Held-out {self.loss_label}',
      'held_out/accuracy': f'Held-out {self.accuracy_label}',
      'validation/loss': f'Validation {self.loss_label}',
      'validation/accuracy': f'Validation {self.accuracy_label}',
      'personal/loss': f'Own test {self.loss_label}',
      'personal/accuracy': f'Own test {self.accuracy_label}',
      'train/loss': f'Train {self.loss_label}',
      'barrier/loss': f'Barrier (nats per {self.unit})',
    }

  def label(self, measure: str) -> str:
    """Returns the label of 'loss' or 'accuracy', such as 'Accuracy (%)'."""
    label = self.loss_label if measure == 'loss' else self.accuracy_label
    return capitalized(label)


def words_of(runs: Iterable[Run]) -> Words:
  """Returns the words for what these runs, together, predict."""
  is_image = {run.holds_images for run in runs}
  if is_image == {True}:
    return Words('image', 'accuracy')
  if is_image == {True, False}:
    return Words('token or image', 'accuracy')
  return Words('token', 'token accuracy')


def listed(words: Sequence[str]) -> str:
  """Returns '', 'a', 'a and b' or 'a, b and c'."""
  return ' and '.join(
    part for part in (', '.join(words[:-1]), *words[-1:]) if part
  )


def capitalized(text: str) -> str:
  """Returns a text whose first letter is a capital; the rest is unchanged."""
  return f'{text[:1].upper()}{text[1:]}'


def shown(value: float, places: int, scale: float = 1.0, sign: str = '') -> str:
  """Returns a scaled number as text, with a typographic minus; 0 has none.

  A million and more have an exponent.
  """
  digits = f'z.{places}f' if abs(scale * value) < 1e6 else '.3g'
  return f'{scale * value:{sign}{digits}}'.replace('-', '−')


def interval_words(
  estimate: Estimate, measure: str, sign: str = '', factor: int = 1
) -> str:
  """Returns '0.165 to 0.215', 'by seed 0.2 and 0.19', or '' without either.

  Numbers are multiplied by `factor`, 1 or -1.
  """
  start, between, numbers = '', ' to ', [estimate.low, estimate.high]
  if estimate.low is None:
    if len(estimate.by_seed) != 2:
      return ''
    start, between, numbers = 'by seed ', ' and ', estimate.by_seed
  elif factor < 0:
    numbers.reverse()
  scale = factor * SCALES[measure]
  return start + between.join(
    shown(number, PLACES[measure], scale, sign) for number in numbers
  )


def estimate_columns(sample: Sample, measure: str) -> dict[str, float | None]:
  """Returns y, low, high and places of a plot; no y where some are missing."""
  estimate, scale = sample.estimates[measure], SCALES[measure]
  if estimate is None or sample.problem:
    return dict.fromkeys(('y', 'low', 'high')) | {'places': PLACES[measure]}
  numbers = {'y': estimate.mean, 'low': estimate.low, 'high': estimate.high}
  scaled = {n: None if v is None else scale * v for n, v in numbers.items()}
  return scaled | {'places': PLACES[measure]}


def said_fraction(fraction: float) -> str:
  """Returns how a model was personalized, such as 'personalized on 50 %'."""
  if fraction == 0:
    return 'without personalization'
  return f'personalized on {100 * fraction:g} %'
