"""Tables 2 to 6 of Dhawan et al. (2024), FedFish, and what may stand beside.

Source: "Leveraging Function Space Aggregation for Federated Learning at Scale",
https://arxiv.org/abs/2311.10291v2. The paper prints neither numbers of seeds
nor intervals. Its "perplexity" lies between 3.4 and 7.1 at token accuracies of
16 to 44 %: it is read as the mean cross-entropy in nats, whose exponential the
perplexity is.

A corpus counts as the paper's only where the run proves it: the published
corpora of images are checked when they are opened. A directory of text may hold
anything, whatever its name. Everything else is at most the nearest result of
the same kind of task, whose scores are not comparable.
"""

import json
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pandas as pd

from tff_fedfish.reporting.evaluations import Evaluation
from tff_fedfish.reporting.match import (
  FIXED_COMPUTE,
  REFERENCE_LOCAL_EPOCHS,
  Budgets,
)
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.words import holds_images
from tff_fedfish.run.corpus_identity import CorpusIdentity

EMNIST = 'EMNIST'
CIFAR100 = 'CIFAR100'
STACK_OVERFLOW = 'Stack Overflow'
C4 = 'C4'
CC_NEWS = 'CC-News'

FED_AVG = 'fed_avg'
FED_FISH = 'fed_fish'
LAST_EPOCH = 'last_epoch'
"""FedFish with the Fisher of the last local epoch's gradients: Table 6."""

# Preset and words of the model, and the clients that are evaluated, as Table 1
# prints them.
_MODELS = {
  EMNIST: ('emnist_cnn', 'a CNN of two convolutions', '3.4K test clients'),
  CIFAR100: ('resnet18', 'ResNet-18 with group norm', '100 test clients'),
  # Its 204K test clients are not those that section A.3.1 evaluates on.
  STACK_OVERFLOW: ('350m', 'a 350M decoder', '38,758 validation clients'),
  C4: ('1.5b', 'a 1.5B decoder', '8.5K test clients'),
}
# In what every run of ours differs, whatever its settings. FedC4's code is what
# the paper's loader of text builds on.
_END_OF_TEXT = (
  "the end of a document counted as a target, which FedC4's code weighs by 0 "
  '(not printed)'
)
_SMALL_CLIENTS = (
  'held-out clients with fewer than 4 examples left out (printed of C4 only)'
)
_ALWAYS = {
  EMNIST: (_SMALL_CLIENTS,),
  CIFAR100: (_SMALL_CLIENTS,),
  STACK_OVERFLOW: (_END_OF_TEXT, _SMALL_CLIENTS),
  C4: (_END_OF_TEXT,),
}
# Training clients of CIFAR100 as published: setting, value, and the default of
# a run that does not say it.
_PACHINKO = (
  ('num_clients', 500, None),
  ('examples_per_client', 100, 100),
  ('root_alpha', 0.1, 0.1),
  ('leaf_alpha', 10, 10),
  ('held_out', 'matching', 'matching'),
)


class Task(NamedTuple):
  """A corpus of the paper that stands beside one of ours."""

  corpus: str
  """The paper's name of it."""
  is_same: bool
  """Whether it is the same corpus, with the same training clients and the test
  split as held-out clients."""
  words: str
  """The differences; '' if there are none."""


def _read(name: str) -> pd.DataFrame:
  path = pathlib.Path(__file__).parents[1] / 'templates' / name
  return pd.read_csv(path, dtype=str, keep_default_na=False)


def _results() -> pd.DataFrame:
  """Returns Tables 3 to 6, a number a row; accuracies in [0, 1]."""
  found = _read('fed_fish_results.csv').melt(
    ['table', 'corpus', 'num_local_epochs', 'evaluated_on', 'stage', 'method'],
    var_name='place',
  )
  found = found[found['value'] != '']
  found[['measure', 'fraction']] = found.pop('place').str.split(expand=True)
  numbers = dict(table=int, num_local_epochs=int, fraction=float, value=float)
  found = found.astype(numbers)
  is_percent = found['measure'] == 'accuracy'
  shares = (found['value'] / 100).round(6)
  return found.assign(value=found['value'].mask(is_percent, shares))


RESULTS = _results()
"""The printed numbers, a row each: table, corpus that was trained on,
num_local_epochs, evaluated_on, stage ('fixed compute', 'fixed rounds', 'last'
or 'half'), method, measure, value and fraction, the share of a client's data
that was personalized on; 0.5 is assumed for Table 3, which does not say it."""

SETTINGS = _read('fed_fish_settings.csv').set_index('setting')
"""Table 2 and the text as JSON by setting, with its words, and a column per
corpus; empty where a setting does not apply."""


def find_value(**wanted: str | int | float | None) -> float | None:
  """Returns the one number with all the given columns of `RESULTS`, or None."""
  found = RESULTS
  for name, value in wanted.items():
    found = found[found[name] == value]
  if len(found) > 1:
    raise ValueError(f'One result must have {wanted}, but {len(found)} have.')
  return found['value'].item() if len(found) else None


def printed_settings(corpus: str) -> dict[str, tuple[str, Any]]:
  """Returns setting -> (words, value) of the paper's runs on a corpus.

  Some are not printed, and are what its code base or most others have.
  """
  return {
    name: (row['words'], _from_json(row[corpus]))
    for name, row in SETTINGS.iterrows()
    if row[corpus]
  }


def nearest_task(run: Run) -> Task | None:
  """Returns the paper's nearest task by the corpus of a run; None: none."""
  corpus = run.corpus_name
  if not holds_images(run):
    words = f'the text in “{corpus}”, '
    words += (
      f'grouped from {run.identity.name} by {run.identity.key}'
      if run.identity
      else 'of which a run does not record what it is'
    )
    is_posts = _is_named(run.identity, corpus, STACK_OVERFLOW)
    return Task(STACK_OVERFLOW if is_posts else C4, False, words)
  if corpus == 'emnist_by_writer':
    words = '; '.join(_training_clients_held_out(run))
    return Task(EMNIST, not words, words)
  if corpus == 'mnist_by_writer':
    words = 'ten digits of MNIST by writer, not 62 characters of EMNIST'
    return Task(EMNIST, False, words)
  if corpus == 'cifar100':
    scheme = run.setting('partition.scheme')
    found = [*_training_clients_held_out(run), *_other_clients(run, scheme)]
    is_same = not found
    if scheme == 'pachinko':
      found.append(
        'held-out clients are twins of the training clients, where the paper '
        'has 100 clients of their own'
      )
    return Task(CIFAR100, is_same, '; '.join(found))
  if corpus == 'cifar10':
    words = 'the ten classes of CIFAR-10, not the hundred of CIFAR-100'
    return Task(CIFAR100, False, words)
  return None


def evaluated_corpus(task: Task, evaluation: Evaluation) -> str | None:
  """Returns the paper's name of the corpus whose clients were scored.

  A corpus other than that of the run's task has the name of the paper's corpus
  that it was grouped from; in an older version, that its directory is named
  after.
  """
  if evaluation.kind != 'transfer':
    return task.corpus
  for other in (STACK_OVERFLOW, CC_NEWS):
    if _is_named(evaluation.identity, evaluation.corpus, other):
      return other
  return None


def method_of_paper(run: Run) -> str | None:
  """Returns the paper's method that a run uses; None: none of them."""
  if run.algorithm == FED_FISH:
    estimator = run.setting('algorithm.fisher_estimator') or 'extra_pass'
    known = {'extra_pass': FED_FISH, 'last_epoch': LAST_EPOCH}
    return known.get(estimator)
  return FED_AVG if run.algorithm == FED_AVG else None


def differences(
  task: Task,
  runs: Sequence[Run],
  evaluations: Sequence[Evaluation],
  budgets: Budgets | None,
) -> list[str]:
  """Returns in what the runs of a study differ from the paper, in words.

  Such as 'clients per round 32 instead of 64'. Seeds are not among them: the
  paper does not say their number. `evaluations` are those whose scores are
  shown.
  """
  found = [f'corpus: {task.words}'] if task.words else []
  preset, model, num_evaluated = _MODELS[task.corpus]
  presets = {run.setting('model.preset') for run in runs}
  if presets != {preset}:
    found.append(f'model {_listed(presets)} instead of {model}')
  for name, (words, printed) in printed_settings(task.corpus).items():
    ours = _values(name, runs, evaluations)
    if name == 'training.num_rounds' and budgets:
      ours = {budgets.num_rounds}
    # A run of an older version may not say it.
    ours -= {None}
    if ours and ours != {printed}:
      found.append(f'{words} {_listed(ours)} instead of {_shown(printed)}')
  found.extend(_ALWAYS[task.corpus])
  counts = {e.num_clients for e in evaluations if e.kind != 'transfer'} - {None}
  if counts:
    found.append(
      f'{_listed(counts)} held-out clients evaluated instead of {num_evaluated}'
    )
  if (
    budgets
    and FIXED_COMPUTE in budgets.names
    and budgets.local_epochs != REFERENCE_LOCAL_EPOCHS
  ):
    found.append(
      f'fixed compute is that of E = {budgets.local_epochs} instead of '
      f'{REFERENCE_LOCAL_EPOCHS}'
    )
  return found


def _from_json(cell: str) -> Any:
  try:
    return json.loads(cell)
  except json.JSONDecodeError:
    return cell


def _values(name, runs, evaluations) -> set:
  """Returns the values of a setting in all runs or evaluations."""
  section, _, key = name.partition('.')
  if section == 'personalization':
    return {e.personalization.get(key) for e in evaluations}
  if key.startswith('fisher_'):
    # Former versions wrote it into runs of other methods, too.
    runs = [run for run in runs if run.algorithm == FED_FISH]
  values = {run.setting(name) for run in runs}
  if key == 'fisher_normalization':
    values = {value or 'none' for value in values}
  return values


def _training_clients_held_out(run: Run) -> Iterator[str]:
  """Yields that other clients are held out than those of the test split."""
  share = run.setting('client_splits.held_out_fraction')
  if share is not None:
    yield (
      f'{100 * share:g} % of the training clients are held out, not the test '
      'split'
    )


def _other_clients(run: Run, scheme: str | None) -> Iterator[str]:
  """Yields in what a run's clients of CIFAR100 are not the paper's."""
  if scheme not in (None, 'pachinko'):
    yield f'clients made by {scheme}, not by pachinko'
  for name, printed, default in _PACHINKO if scheme == 'pachinko' else ():
    value = run.setting(f'partition.{name}')
    value = default if value is None else value
    if value != printed:
      yield f'partition.{name} {_shown(value)} instead of {_shown(printed)}'


def _listed(values: Iterable[Any]) -> str:
  def order(value):
    return isinstance(value, str), value is None, value or 0

  return ' / '.join(map(_shown, sorted(values, key=order)))


def _shown(value: Any) -> str:
  if value is None or isinstance(value, bool):
    return {None: 'none', True: 'on', False: 'off'}[value]
  return f'{value:,}' if isinstance(value, int) else f'{value}'


def _is_named(identity: CorpusIdentity | None, name: str, corpus: str) -> bool:
  """Says whether the source of a corpus, or its name, holds another's name."""
  wanted, found = (
    re.sub('[^a-z0-9]', '', text.lower())
    for text in (corpus, identity.name if identity else name)
  )
  return wanted in found
