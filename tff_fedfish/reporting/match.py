"""Which runs, and which evaluations of them, may be compared.

A config falls into the method (its settings and the optimizers, which every
method needs its own of), the seeds, and the setting: all the rest that may
change a number. The corpus and the vocabulary count by what they hold, not by
their paths. A setting whose field says `changes_results=False` does not count.

Runs of equal setting and method that differ in seeds, other than those of the
clients' split and partition, are repetitions. Runs of equal setting and seeds
are compared, by evaluations of equal key.

Dhawan et al. (2024), FedFish, compare local epochs E for R rounds each, and for
R E_reference / E rounds, so that all clients compute as much: two budgets.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tff_fedfish.config import names
from tff_fedfish.config.schema import EngineConfig, resolved_partial_sums
from tff_fedfish.methods import registry
from tff_fedfish.reporting.evaluations import Evaluation
from tff_fedfish.reporting.runs import OWN_TEST, SEEDS, Run, Subject
from tff_fedfish.reporting.settings import flatten

FIXED_COMPUTE = 'fixed compute'
FIXED_ROUNDS = 'fixed rounds'
_BUDGETS = (FIXED_COMPUTE, FIXED_ROUNDS)
REFERENCE_LOCAL_EPOCHS = 4
"""E of Table 3 of Dhawan et al. (2024) whose rows are equal in both columns."""

LOCAL_EPOCHS = 'client_work.num_local_epochs'
NUM_ROUNDS = 'training.num_rounds'

# What a search may choose for each number of local epochs and of rounds.
_RATE = ('learning_rate', 'warmup_rounds', 'schedule_rounds', 'final_fraction')
_CLIENT_OPTIMIZER = (
  *_RATE,
  *('optimizer', 'momentum', 'nesterov', 'beta_1', 'beta_2', 'epsilon'),
  *('weight_decay', 'learning_rate_schedule'),
  *('max_gradient_norm', 'max_delta_norm'),
)
_RATES = tuple(
  f'{s}.{name}' for s in ('client_work', 'server') for name in _RATE
)
# What makes a method: sections, which end with a dot, and single settings.
_METHOD = (
  *('algorithm.', 'local_privacy.', 'server.'),
  *(f'client_work.{name}' for name in _CLIENT_OPTIMIZER),
)
# What makes the clients and their rows.
_CLIENTS = (
  *('corpus', 'vocabulary', 'data.', 'partition.', 'client_splits.'),
  *('model.vocabulary_size', 'seeds.split_seed', 'seeds.partition_seed'),
)
# What makes the sample that is scored while a run trains.
_SAMPLE = tuple(
  f'evaluation.{name}'
  for name in ('num_clients', 'max_sequences_per_client', 'split_unit')
)
_WITHOUT_RESULTS = frozenset(
  name
  for method in registry.BUILT_IN.values()
  for name, field in names.fields_of(method).items()
  if not field.metadata.get('changes_results', True)
)
_PARTIAL_SUMS = 'engine.num_partial_sums'
_THREADS = 'engine.threads_per_worker'
_SHORT_NAMES = {
  LOCAL_EPOCHS: 'E',
  NUM_ROUNDS: 'rounds',
  'algorithm.fisher_estimator': 'fisher_estimator',
  'client_work.learning_rate': 'client learning rate',
  'server.learning_rate': 'server learning rate',
}
# Settings of an evaluation that it has without fine-tuning, too.
_OF_ROWS = (
  *('sequence_length', 'split_seed', 'split_unit'),
  'max_sequences_per_client',
)

Key = tuple[tuple[str, str], ...]
"""(name, value) of some settings, sorted by name; can be a dictionary's key."""


@dataclasses.dataclass(frozen=True)
class Budgets:
  """The budgets of runs that differ in method, local epochs and rounds."""

  num_rounds: int
  """R: rounds under 'fixed rounds', and those of the reference."""
  local_epochs: int | float
  """E_reference: R rounds with it are the compute that runs under 'fixed
  compute' share."""
  names: tuple[str, ...] = (FIXED_ROUNDS,)
  """Budgets under which there is more than the reference."""

  def holds(self, name: str, run: Run) -> bool:
    """Returns whether a run keeps to `FIXED_COMPUTE` or `FIXED_ROUNDS`."""
    epochs, num_rounds = run.num_local_epochs, run.num_rounds
    if None in (epochs, num_rounds):
      return False
    if name == FIXED_ROUNDS:
      return num_rounds == self.num_rounds
    return num_rounds * epochs == self.num_rounds * self.local_epochs


def comparable(run: Run) -> Key:
  """Returns what runs must share to be compared: the setting and the seeds."""
  return *setting_of(run), ('seeds', run.seeds)


def setting_of(run: Run) -> Key:
  """Returns what runs of different methods must share, but for the seeds."""
  return _settings(
    run,
    lambda name: (
      not _is_among(name, (*_METHOD, *SEEDS, 'schema_version'))
      and name not in _WITHOUT_RESULTS
    ),
  )


def study_of(run: Run) -> Key:
  """Returns the setting without local epochs and rounds."""
  return tuple(
    pair
    for pair in setting_of(run)
    if pair[0] not in (LOCAL_EPOCHS, NUM_ROUNDS)
  )


def clients_of(run: Run) -> Key:
  """Returns what runs must share to have the same clients with equal rows."""
  return _settings(
    run,
    lambda name: _is_among(name, _CLIENTS) and name not in _WITHOUT_RESULTS,
  )


def sample_of(run: Run) -> Key:
  """Returns what runs must share to have one scale of scores in training."""
  return clients_of(run) + _settings(run, lambda name: name in _SAMPLE)


def method_of(run: Run) -> Key:
  """Returns the method with the settings that it reads and the optimizers.

  A method that cannot be loaded has all its settings as written.
  """
  settings = _settings(
    run,
    lambda name: _is_among(name, _METHOD) and name not in _WITHOUT_RESULTS,
  )
  return ('method', run.method), *settings


def optimizers_of(run: Run) -> Key:
  """Returns the part of `method_of` that every method needs its own of."""
  return tuple(
    pair
    for pair in method_of(run)
    if pair[0].startswith(('server.', 'client_work.'))
  )


def evaluation_key(
  run: Run, evaluation: Evaluation, fraction: float | None = None
) -> Key:
  """Returns what evaluations must share to be compared.

  These are the subject, the corpus, the round, the clients, their halves and
  the fine-tuning.

  Args:
    run: The run that was evaluated.
    evaluation: One of its evaluations.
    fraction: The fraction whose scores are compared. The fine-tuning does not
      count at 0. None: all fractions.
  """
  skipped = evaluation.skipped_clients.get('beyond_max_clients', 0)
  values = {
    'subject': str(run.shows_as(evaluation)),
    'corpus': evaluation.corpus,
    'round': evaluation.round_num,
    'clients beyond --max_clients': skipped,
  }
  # A method with models of clients' own may leave clients out.
  if evaluation.kind != OWN_TEST.kind:
    values['clients'] = evaluation.num_clients
  values |= {
    name: value
    for name, value in evaluation.personalization.items()
    if fraction != 0.0 or name in _OF_ROWS
  }
  return tuple(
    (name, json.dumps(value)) for name, value in sorted(values.items())
  )


def paired_evaluations(
  runs: Iterable[Run],
  baselines: Iterable[Run],
  subject: Subject,
  fraction: float,
  round_num: int | None = None,
) -> tuple[dict[str, Evaluation], dict[str, Evaluation]]:
  """Returns evaluations of equal key of both sides, by the seeds.

  Of several keys this is the one that most seeds have on both sides, then the
  one of the latest round; no evaluation where there is none.

  Args:
    runs: Runs that differ in seeds only. Of equal seeds the first counts.
    baselines: The same of what they are compared with.
    subject: The clients that were scored.
    fraction: The fraction of their data that was personalized on.
    round_num: The only round that counts; None: any.
  """
  by_key: dict[Key, list[dict[str, Evaluation]]] = {}
  for side, members in enumerate((runs, baselines)):
    for run in members:
      for evaluation in run.evaluations_on(subject, round_num):
        if fraction in set(evaluation.clients['fraction']):
          key = evaluation_key(run, evaluation, fraction)
          found = by_key.setdefault(key, [{}, {}])
          found[side].setdefault(run.seeds, evaluation)

  def rank(sides):
    shared = sides[0].keys() & sides[1].keys()
    evaluations = list(sides[0].values())
    rounds = {e.round_num for e in evaluations} - {None}
    names = (e.name for e in evaluations)
    return len(shared), max(rounds, default=-1), max(names, default='')

  best = max(by_key.values(), key=rank, default=[{}, {}])
  return tuple(best) if best[0].keys() & best[1].keys() else ({}, {})


def labels(settings: Sequence[Mapping[str, str]]) -> list[str]:
  """Returns the values, by name, in which each setting differs from others.

  Such as 'E = 8, rounds = 120'; '' where nothing differs.
  """
  keys = dict.fromkeys(name for setting in settings for name in setting)
  names = {
    key: label_of(key)
    for key in keys
    if len({setting.get(key) for setting in settings}) > 1
  }
  return [
    ', '.join(f'{n} = {s.get(key, "(not set)")}' for key, n in names.items())
    for s in settings
  ]


def differing(keys: Sequence[Key]) -> dict[str, list[str]]:
  """Returns the values, each once, of what is not equal in all keys."""
  settings = list(map(dict, keys))
  names = dict.fromkeys(name for setting in settings for name in setting)
  values = {
    name: list(dict.fromkeys(s.get(name, '(not set)') for s in settings))
    for name in names
  }
  return {name: found for name, found in values.items() if len(found) > 1}


def method_names(methods: Sequence[Key]) -> list[str]:
  """Returns unique names for different keys of `method_of`.

  They are the method and what tells its variants apart, such as "FedFish
  (fisher_estimator 'last_epoch')".
  """
  names = []
  for method in methods:
    (_, title), *settings = method
    others = [dict(other) for other in methods if other[0] == method[0]]
    differing = [
      f'{short_name(name)} {value}'
      for name, value in settings
      if any(other.get(name) != value for other in others)
    ]
    names.append(f'{title} ({", ".join(differing)})' if differing else title)
  return names


def studies(runs: Sequence[Run]) -> dict[str, list[Run]]:
  """Returns runs that differ in method, local epochs and rounds only.

  Lists are in the order of the runs, by what tells them from the other lists,
  such as 'partition.alpha = 0.1'; '' for a single one.
  """
  found = grouped(runs, study_of)
  return dict(zip(labels(list(map(dict, found))), found.values(), strict=True))


def methods(runs: Sequence[Run]) -> dict[str, list[Run]]:
  """Returns the pooled runs of one of `studies` by the method's name.

  Runs of equal algorithm are one method where they differ in local epochs or
  rounds: learning rates, and over how many rounds they change, may have been
  chosen for each of these. Otherwise they make methods of their own.
  """

  def without_rates(run):
    return tuple(pair for pair in method_of(run) if pair[0] not in _RATES)

  found: dict[Key, list[Run]] = {}
  for coarse, members in grouped(runs, without_rates).items():
    shapes = {(run.num_local_epochs, run.num_rounds) for run in members}
    for run in members:
      key = coarse if len(shapes) == len(members) else method_of(run)
      found.setdefault(key, []).append(run)
  return dict(zip(method_names(list(found)), found.values(), strict=True))


def find_budgets(runs: Sequence[Run]) -> Budgets | None:
  """Returns the budgets that explain most of the runs of one of `studies`.

  Their reference is one of the runs: where several explain as many, one with
  the paper's local epochs, else with the fewest, then the most rounds. None if
  no run says its local epochs and rounds.
  """
  by_shape = {(run.num_local_epochs, run.num_rounds): run for run in runs}
  shapes = [shape for shape in by_shape if None not in shape]
  if not shapes:
    return None

  def rank(shape):
    epochs, num_rounds = shape
    reference = Budgets(num_rounds, epochs)
    num_explained = sum(
      any(reference.holds(name, run) for name in _BUDGETS)
      for run in by_shape.values()
    )
    return -num_explained, epochs != REFERENCE_LOCAL_EPOCHS, epochs, -num_rounds

  epochs, num_rounds = min(shapes, key=rank)
  reference = Budgets(num_rounds, epochs)
  others = [run for run in runs if run.num_local_epochs != epochs]
  names = tuple(
    n for n in _BUDGETS if any(reference.holds(n, run) for run in others)
  )
  return dataclasses.replace(reference, names=names) if names else reference


def grouped(items: Iterable[Any], key: Callable) -> dict[Any, list]:
  """Returns the items by their key, in the order of first appearance."""
  groups: dict[Any, list] = {}
  for item in items:
    groups.setdefault(key(item), []).append(item)
  return groups


def _settings(run: Run, counts: Callable[[str], bool]) -> Key:
  """Returns the settings that a run reads and that count, by name."""
  given = flatten(run.config)
  fields = names.fields_of(registry.find_or_none(names.method_name(given)))
  values = {name: field.default for name, field in fields.items()} | given
  if run.identity:
    # The same corpus may lie elsewhere.
    del values['data.directory']
    values['corpus'] = run.identity.fingerprint[:12]
  if run.vocabulary:
    del values['data.vocabulary']
    values['vocabulary'] = run.vocabulary[:12]
  values[_PARTIAL_SUMS] = resolved_partial_sums(
    values[_PARTIAL_SUMS],
    values['engine.kind'],
    # As `TrainConfig.cohort_size`.
    values['cohorts.cohort_size'] or values['partition.num_clients'],
  )
  if values['engine.kind'] == 'in_process':
    # There is no worker.
    values[_THREADS] = EngineConfig.threads_per_worker
  if values['partition.scheme'] is None:
    del values['seeds.partition_seed']
  return tuple(
    (name, repr(value))
    for name, value in sorted(values.items())
    if run.reads(name) and counts(name)
  )


def _is_among(name: str, names: Sequence[str]) -> bool:
  return name in names or f'{name.partition(".")[0]}.' in names


def label_of(name: str) -> str:
  """Returns a setting's name in a sentence, such as 'rounds'."""
  return _SHORT_NAMES.get(name, name)


def short_name(name: str) -> str:
  """Returns a setting's name in a label, such as 'E'."""
  section, _, setting = name.partition('.')
  # Both sides have an optimizer.
  side = {'client_work': 'client ', 'server': 'server '}.get(section, '')
  return _SHORT_NAMES.get(name, f'{side}{setting}')
