"""Words for a model's targets: tokens of text or classes of images."""

import dataclasses
from collections.abc import Iterable, Sequence

from tff_fedfish.reporting.evaluations import Evaluation
from tff_fedfish.reporting.runs import Run

_TEXT = (None, 'grouped_text')


@dataclasses.dataclass(frozen=True)
class Words:
  """Names of the scores, right for text and for images.

  Attributes:
    unit: What a loss is per: 'token', 'image', or both.
    accuracy: 'token accuracy' where all is text, else 'accuracy'.
  """

  unit: str
  accuracy: str

  @property
  def loss_label(self) -> str:
    """The loss with its unit."""
    return f'loss (nats per {self.unit})'

  @property
  def accuracy_label(self) -> str:
    """The accuracy with its unit."""
    return f'{self.accuracy} (%)'

  def label(self, measure: str) -> str:
    """Returns 'Loss (nats per token)' or 'Token accuracy (%)'.

    Args:
      measure: 'loss' or 'accuracy'.
    """
    label = self.loss_label if measure == 'loss' else self.accuracy_label
    return f'{label[:1].upper()}{label[1:]}'


def words_of(runs: Sequence[Run]) -> Words:
  """Returns the words for what these runs, together, predict."""
  is_image = {holds_images(run) for run in runs}
  if is_image == {True}:
    return Words('image', 'accuracy')
  if is_image == {True, False}:
    return Words('token or image', 'accuracy')
  return Words('token', 'token accuracy')


def holds_images(run: Run) -> bool:
  """Returns whether a run was trained on images."""
  return run.setting('data.corpus') not in _TEXT


def interval_sample(evaluations: Iterable[Evaluation]) -> str:
  """Returns what the intervals of these scores are over.

  Args:
    evaluations: Those that are shown, each of as many seeds as have it.
  """
  counts = {evaluation.num_seeds for evaluation in evaluations} or {1}
  if counts == {1}:
    return 'clients'
  seeds = f'{min(counts)} to {max(counts)}' if len(counts) > 1 else max(counts)
  return f'clients and {seeds} seeds, crossed'
