"""Which of the paper's results a run may be set beside, and what differs.

A corpus counts as the paper's only where the run proves it: the published
corpora of images are checked when they are opened. A directory of text may hold
anything, whatever its name. Everything else is at most the nearest result of
the same kind of task, whose scores are not comparable.
"""

import dataclasses
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tff_fedfish.reporting.evaluations import Evaluation
from tff_fedfish.reporting.fixed_budgets import (
  FIXED_COMPUTE,
  PAPER_LOCAL_EPOCHS,
  Budgets,
)
from tff_fedfish.reporting.papers import fed_fish as paper_results
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.words import holds_images

# Training clients of CIFAR100 as published: setting, value, and what a run that
# does not say it takes.
_PACHINKO = (
  ('num_clients', 500, None),
  ('examples_per_client', 100, 100),
  ('root_alpha', 0.1, 0.1),
  ('leaf_alpha', 10, 10),
  ('held_out', 'matching', 'matching'),
)
# Of the paper's optimizers, on either side.
_PLAIN_STEPS = (
  ('momentum', 0.0),
  ('weight_decay', 0.0),
  ('max_gradient_norm', None),
  ('learning_rate_schedule', 'constant'),
  ('warmup_rounds', 0),
)


@dataclasses.dataclass(frozen=True)
class Task:
  """A corpus of the paper that stands beside one of ours.

  Attributes:
    corpus: The paper's name of it.
    is_same: Whether it is the same corpus, with the same training clients and
      the test split as held-out clients.
    words: What differs; '' where nothing does.
  """

  corpus: str
  is_same: bool
  words: str


def corpus_name(run: Run) -> str:
  """Returns a run's corpus: of images its own name, else the directory's."""
  if holds_images(run):
    return str(run.setting('data', 'corpus'))
  return pathlib.PurePath(str(run.setting('data', 'directory'))).name


def nearest_task(run: Run) -> Task | None:
  """Returns what to set beside a run, by the corpus that it was trained on.

  Args:
    run: A run.

  Returns:
    The task; None where the paper has nothing of the kind.
  """
  scheme = run.setting('partition', 'scheme')
  corpus = corpus_name(run)
  if not holds_images(run):
    return Task(
      paper_results.STACK_OVERFLOW
      if _is_named(corpus, paper_results.STACK_OVERFLOW)
      else paper_results.C4,
      False,
      f'the text in “{corpus}”, of which a run does not record what it is',
    )
  if corpus == 'emnist_by_writer':
    words = _training_clients_held_out(run)
    return Task(paper_results.EMNIST, not words, words)
  if corpus == 'mnist_by_writer':
    words = 'ten digits of MNIST by writer, not 62 characters of EMNIST'
    return Task(paper_results.EMNIST, False, words)
  if corpus == 'cifar100':
    found = [_training_clients_held_out(run)]
    if scheme == 'pachinko':
      found += _other_pachinko(run)
    elif scheme is not None:
      found.append(f'clients made by {scheme}, not by pachinko')
    found = [words for words in found if words]
    is_same = not found
    if scheme == 'pachinko':
      found.append(
        'held-out clients are twins of the training clients, where the paper '
        'has 100 clients of their own'
      )
    return Task(paper_results.CIFAR100, is_same, '; '.join(found))
  if corpus == 'cifar10':
    words = 'the ten classes of CIFAR-10, not the hundred of CIFAR-100'
    return Task(paper_results.CIFAR100, False, words)
  return None


def evaluated_corpus(task: Task, evaluation: Evaluation) -> str | None:
  """Returns the paper's name of whose clients were scored.

  Args:
    task: Of the run.
    evaluation: One of its evaluations.

  Returns:
    That of the task for its own clients. For another corpus the one of the
    paper that its directory is named after, else None.
  """
  if evaluation.kind != 'transfer':
    return task.corpus
  others = (paper_results.STACK_OVERFLOW, paper_results.CC_NEWS)
  return next((c for c in others if _is_named(evaluation.corpus, c)), None)


def method_of_paper(run: Run) -> str | None:
  """Returns which of the paper's methods a run uses; None: none of them."""
  if run.algorithm == paper_results.FED_AVG:
    return paper_results.FED_AVG
  if run.algorithm != paper_results.FED_FISH:
    return None
  return {
    None: paper_results.FED_FISH,
    'extra_pass': paper_results.FED_FISH,
    'last_epoch': paper_results.LAST_EPOCH,
  }.get(run.setting('algorithm', 'fisher_estimator'))


def differences(
  task: Task,
  runs: Sequence[Run],
  evaluations: Iterable[Evaluation],
  budgets: Budgets | None,
) -> list[str]:
  """Returns in what the runs differ from the paper, in words.

  Args:
    task: What they are set beside.
    runs: Runs that differ in method, local epochs, rounds and seeds only.
    evaluations: Those whose scores are shown.
    budgets: Of the runs.

  Returns:
    Such as 'clients per round 32 instead of 64'. Seeds are not among them: the
    paper does not say their number.
  """
  paper = paper_results.SETTINGS[task.corpus]
  found = [f'corpus: {task.words}'] if task.words else []
  presets = {run.setting('model', 'preset') for run in runs}
  if not presets <= set(paper.presets):
    found.append(f'model {_listed(presets)} instead of {paper.model}')
  rounds = {budgets.num_rounds} if budgets else {r.num_rounds for r in runs}
  evaluations = list(evaluations)

  def setting(*keys: str) -> set[Any]:
    return {run.setting(*keys) for run in runs}

  def of_fine_tuning(name: str) -> set[Any]:
    return {e.personalization.get(name) for e in evaluations}

  compared = [
    ('rounds', rounds, paper.num_rounds),
    ('clients per round', setting('cohorts', 'cohort_size'), paper.cohort_size),
    (
      'local batch size',
      setting('client_work', 'local_batch_size'),
      paper.local_batch_size,
    ),
    (
      'examples per client and round at most',
      setting('client_work', 'max_sequences_per_client'),
      paper.max_sequences_per_client,
    ),
    (
      'sequence length',
      setting('data', 'sequence_length'),
      paper.sequence_length,
    ),
    (
      'sequence length in evaluations',
      of_fine_tuning('sequence_length'),
      paper.sequence_length and 128,
    ),
    (
      'epochs of personalization',
      of_fine_tuning('epochs'),
      paper.personalization_epochs,
    ),
    (
      'server learning rate',
      setting('server', 'learning_rate'),
      paper.server_learning_rate,
    ),
    ('server optimizer', setting('server', 'optimizer'), 'adam'),
    (
      'client learning rate',
      setting('client_work', 'learning_rate'),
      paper.client_learning_rate,
    ),
    ('client optimizer', setting('client_work', 'optimizer'), 'sgd'),
    *(
      (f'{side} {name.replace("_", " ")}', setting(section, name), printed)
      for section, side in (('client_work', 'client'), ('server', 'server'))
      for name, printed in _PLAIN_STEPS
    ),
    (
      'client weighting',
      setting('algorithm', 'client_weighting'),
      'num_examples',
    ),
    (
      'Fisher reduction',
      {
        run.setting('algorithm', 'fisher_reduction')
        for run in runs
        if run.algorithm == paper_results.FED_FISH
      },
      'sum',
    ),
    (
      'Fisher normalization',
      {
        run.setting('algorithm', 'fisher_normalization') or 'none'
        for run in runs
        if run.algorithm == paper_results.FED_FISH
      },
      'none',
    ),
    (
      'correction for ragged batches',
      setting('algorithm', 'ragged_correction'),
      False,
    ),
  ]
  found += _differing(compared)
  counts = {e.num_clients for e in evaluations if e.kind != 'transfer'} - {None}
  if counts:
    found.append(
      f'{_listed(counts)} held-out clients evaluated; the paper’s test split '
      f'has {paper.num_evaluated_clients}'
    )
  if (
    budgets
    and FIXED_COMPUTE in budgets.names
    and budgets.local_epochs != PAPER_LOCAL_EPOCHS
  ):
    found.append(
      f'fixed compute is that of E = {budgets.local_epochs} instead of '
      f'{PAPER_LOCAL_EPOCHS}'
    )
  return found


def _training_clients_held_out(run: Run) -> str:
  """Returns in words that other clients are held out than the test split's."""
  share = run.setting('client_splits', 'held_out_fraction')
  if share is None:
    return ''
  return (
    f'{100 * share:g} % of the training clients are held out, not the test '
    'split'
  )


def _other_pachinko(run: Run) -> Iterator[str]:
  """Yields in what a run's pachinko clients are not the paper's."""
  for name, printed, default in _PACHINKO:
    value = run.setting('partition', name)
    value = default if value is None else value
    if value != printed:
      yield f'partition.{name} {_shown(value)} instead of {_shown(printed)}'


def _differing(compared) -> Iterator[str]:
  for name, ours, printed in compared:
    # A run of an older version may not say it.
    ours = ours - {None}
    if ours and ours != {printed}:
      yield f'{name} {_listed(ours)} instead of {_shown(printed)}'


def _listed(values: Iterable[Any]) -> str:
  return ' / '.join(_shown(v) for v in sorted(values, key=_order))


def _order(value):
  return (isinstance(value, str), value is None, value or 0)


def _shown(value: Any) -> str:
  if value is None or isinstance(value, bool):
    return {None: 'none', True: 'on', False: 'off'}[value]
  return f'{value:,}' if isinstance(value, int) else f'{value}'


def _is_named(name: str, corpus: str) -> bool:
  wanted, found = (
    re.sub('[^a-z0-9]', '', text.lower()) for text in (corpus, name)
  )
  return wanted in found
