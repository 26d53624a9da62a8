"""Keys of runs and evaluations: those of equal key are compared.

A config falls into the method (its settings and the optimizers, which every
method needs its own of), the seeds, and the setting: all the rest that may
change a number. The corpus and the vocabulary count by what they hold, not by
their paths. A setting whose field says `changes_results=False` does not count.

Runs of equal setting and method that differ in seeds, other than those of the
clients' split and partition, are repetitions. Runs of equal setting and seeds
are compared, by evaluations of equal key.
"""

import json
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tff_fedfish.config import load as config_loading
from tff_fedfish.config import names
from tff_fedfish.methods import registry
from tff_fedfish.reporting.runs import OWN_TEST, SEEDS, NamedEvaluation, Run
from tff_fedfish.reporting.settings import flatten

LOCAL_EPOCHS = 'client_work.num_local_epochs'
NUM_ROUNDS = 'training.num_rounds'

_RATE = ('learning_rate', 'warmup_rounds', 'schedule_rounds', 'final_fraction')
_CLIENT_OPTIMIZER = (
  *_RATE,
  *('optimizer', 'momentum', 'nesterov', 'beta_1', 'beta_2', 'epsilon'),
  *('weight_decay', 'learning_rate_schedule'),
  *('max_gradient_norm', 'max_delta_norm'),
)
RATES = tuple(
  f'{s}.{name}' for s in ('client_work', 'server') for name in _RATE
)
"""Settings that a search may choose for each number of local epochs."""

# What makes a method: sections, which end with a dot, and single settings.
_METHOD = (
  *('algorithm.', 'aggregation.', 'local_privacy.', 'server.'),
  *(f'client_work.{name}' for name in _CLIENT_OPTIMIZER),
)
# What makes the clients and their rows.
_CLIENTS = (
  *('corpus', 'vocabulary', 'data.', 'partition.', 'client_splits.'),
  *('model.vocabulary_size', 'seeds.split_seed', 'seeds.partition_seed'),
)
_WITHOUT_RESULTS = frozenset(
  name
  for method in registry.BUILT_IN.values()
  for name, field in names.fields_of(method).items()
  if not field.metadata.get('changes_results', True)
) | {'resolved.num_threads'}
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

# Settings of runs that are still in use.
_FOUND: weakref.WeakKeyDictionary[Run, Key] = weakref.WeakKeyDictionary()


def setting_key(run: Run) -> Key:
  """Returns what runs of different methods must share, but for the seeds."""
  return _settings(
    run,
    lambda name: not _is_among(name, (*_METHOD, *SEEDS, 'schema_version')),
  )


def study_key(run: Run) -> Key:
  """Returns the setting without local epochs and rounds."""
  return tuple(
    pair
    for pair in setting_key(run)
    if pair[0] not in (LOCAL_EPOCHS, NUM_ROUNDS)
  )


def client_key(run: Run) -> Key:
  """Returns what runs must share to have the same clients with equal rows."""
  return _settings(run, lambda name: _is_among(name, _CLIENTS))


def method_key(run: Run) -> Key:
  """Returns the method with its settings and the optimizers."""
  settings = _settings(run, lambda name: _is_among(name, _METHOD))
  return ('method', run.method), *settings


def repetition_key(run: Run) -> Key:
  """Returns what runs share that differ in seeds only."""
  return setting_key(run) + method_key(run)


def optimizer_key(run: Run) -> Key:
  """Returns the part of `method_key` that every method needs its own of."""
  return tuple(
    pair
    for pair in method_key(run)
    if pair[0].startswith(('server.', 'client_work.'))
  )


def evaluation_key(
  run: Run, evaluation: NamedEvaluation, fraction: float | None = None
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
  summary = evaluation.summary
  skipped = summary.skipped_clients.get('beyond_max_clients', 0)
  values = {
    'subject': str(run.subject_of(evaluation)),
    'corpus': evaluation.corpus,
    'round': evaluation.round_num,
    'clients beyond --max_clients': skipped,
  }
  # A method with models of clients' own may leave clients out.
  if summary.kind != OWN_TEST.kind:
    values['clients'] = summary.num_clients
  values |= {
    name: value
    for name, value in summary.personalization.items()
    if fraction != 0.0 or name in _OF_ROWS
  }
  return tuple(
    (name, json.dumps(value)) for name, value in sorted(values.items())
  )


def differing_labels(keys: Sequence[Key]) -> list[str]:
  """Returns the values, by name, in which each key differs from others.

  Such as 'E = 8, rounds = 120'; '' where nothing differs.
  """
  names = differing(keys)
  return [
    ', '.join(f'{label_of(n)} = {s.get(n, "(not set)")}' for n in names)
    for s in map(dict, keys)
  ]


def differing(keys: Sequence[Key]) -> dict[str, list[str]]:
  """Returns the values, each once, of what is not equal in all keys."""
  settings = list(map(dict, keys))
  names = dict.fromkeys(name for setting in settings for name in setting)
  values = {
    name: list(dict.fromkeys(s.get(name, '(not set)') for s in settings))
    for name in names
  }
  return {name: several for name, several in values.items() if len(several) > 1}


def method_names(methods: Sequence[Key]) -> list[str]:
  """Returns unique names for different keys of `method_key`.

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


def grouped(items: Iterable[Any], key: Callable) -> dict[Any, list]:
  """Returns the items by their key, in the order of first appearance."""
  groups: dict[Any, list] = {}
  for item in items:
    groups.setdefault(key(item), []).append(item)
  return groups


def _settings(run: Run, counts: Callable[[str], bool]) -> Key:
  """Returns the settings that count."""
  return tuple(pair for pair in _all_settings(run) if counts(pair[0]))


def _all_settings(run: Run) -> Key:
  """Returns the settings that can change a number, by name."""
  if run not in _FOUND:
    _FOUND[run] = _find_settings(run)
  return _FOUND[run]


def _find_settings(run: Run) -> Key:
  config = run.train_config
  values = flatten(config_loading.to_json_dict(config))
  if run.identity:
    # The same corpus may lie elsewhere.
    del values['data.directory']
    values['corpus'] = run.identity.fingerprint[:12]
  if run.vocabulary:
    del values['data.vocabulary']
    values['vocabulary'] = run.vocabulary[:12]
  values['engine.num_partial_sums'] = config.num_partial_sums
  if config.partition.scheme is None:
    del values['seeds.partition_seed']
  return tuple(
    (name, repr(value))
    for name, value in sorted(values.items())
    if name not in _WITHOUT_RESULTS
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
