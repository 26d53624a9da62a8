"""Keys of runs and evaluations, and the words for what differs between runs.

Every setting that can change a number counts. Seeds, paths and settings whose
field says `changes_results=False` do not; the corpus and the vocabulary count
by what they hold. Runs that differ in seeds only are repetitions. Evaluations
of equal key may be compared, whatever else differs between their runs.
"""

import dataclasses
import hashlib
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from tff_fedfish.config import load as config_loading
from tff_fedfish.config import names as config_names
from tff_fedfish.methods import registry
from tff_fedfish.printing import count
from tff_fedfish.reporting.runs import OWN_TEST, SEEDS, NamedEvaluation, Run
from tff_fedfish.reporting.settings import flatten

LOCAL_EPOCHS = 'client_work.num_local_epochs'
NUM_ROUNDS = 'training.num_rounds'
NAME = 'algorithm.name'

_RATE = ('learning_rate', 'warmup_rounds', 'schedule_rounds', 'final_fraction')
RATES = tuple(
  f'{s}.{name}' for s in ('client_work', 'server') for name in _RATE
)
TUNED = frozenset(
  {*RATES, LOCAL_EPOCHS, 'client_work.num_local_steps', NUM_ROUNDS}
)
"""Settings that are chosen for each method: runs of equal other settings are
trials of one side of a comparison."""

# Settings of the optimizer that fine-tunes; its rate is an evaluation's own.
_FINE_TUNING = (
  *('optimizer', 'momentum', 'nesterov', 'beta_1', 'beta_2', 'epsilon'),
  *('weight_decay', 'max_gradient_norm'),
)
# Settings of an evaluation that it has without fine-tuning, too.
_OF_ROWS = (
  *('sequence_length', 'split_seed', 'split_unit'),
  'max_sequences_per_client',
)
# The sample of held-out clients that is scored while training.
_SAMPLE = ('num_clients', 'max_sequences_per_client', 'split_unit')
# The clients and their rows.
_CLIENTS = (
  *('corpus', 'vocabulary', 'data.', 'partition.', 'client_splits.'),
  *('model.vocabulary_size', 'seeds.split_seed', 'seeds.partition_seed'),
)
_WITHOUT_RESULTS = frozenset(
  name
  for method in registry.BUILT_IN.values()
  for name, field in config_names.fields_of(method).items()
  if not field.metadata.get('changes_results', True)
) | {'resolved.num_threads', 'schema_version'}
_TITLES = {'sgd': 'SGD', 'adam': 'Adam', 'adamw': 'AdamW', 'yogi': 'Yogi'}
_FIRST = ('client_work.optimizer', 'client_work.learning_rate')
_OPTIMIZERS = {'client_work': '', 'server': 'server '}

Key = tuple[tuple[str, str], ...]
"""(name, value) of some settings, sorted by name; can be a dictionary's key."""

# Settings of runs that are still in use.
_FOUND: weakref.WeakKeyDictionary[Run, dict[str, Any]] = (
  weakref.WeakKeyDictionary()
)


def settings_of(run: Run) -> dict[str, Any]:
  """Returns the settings that can change a number, by name, but for seeds."""
  if run not in _FOUND:
    _FOUND[run] = _find_settings(run)
  return _FOUND[run]


def repetition_key(run: Run) -> Key:
  """Returns what runs share that differ in seeds only.

  The sample of clients that is scored while training counts: a mean over seeds
  is of one sample.
  """
  return _key(settings_of(run)) + curve_key(run)


def side_key(run: Run) -> Key:
  """Returns what the trials of one side of a comparison share."""
  own = settings_of(run)
  return _key({name: own[name] for name in own if name not in TUNED})


def client_key(run: Run) -> Key:
  """Returns what runs must share to have the same clients with equal rows."""
  return _key_among(run, _CLIENTS)


def curve_key(run: Run) -> Key:
  """Returns what runs share that score one sample of clients while training."""
  scored = dataclasses.asdict(run.train_config.evaluation)
  sample = {f'evaluation.{name}': scored[name] for name in _SAMPLE}
  return client_key(run) + _key(sample)


def model_key(run: Run) -> Key:
  """Returns what runs must share to count traffic in models of one size."""
  return _key_among(run, ('model.',))


def are_same_settings(run: Run, other: Run) -> bool:
  """Returns whether all settings that both runs have are equal."""
  one, two = settings_of(run), settings_of(other)
  shared = (one.keys() & two.keys()) - {NAME}
  return all(one[name] == two[name] for name in shared)


def evaluation_key(
  run: Run, evaluation: NamedEvaluation, fraction: float
) -> Key:
  """Returns what evaluations must share to be compared at a fraction.

  These are the subject, the corpus, the clients with the number of their rows
  and tokens, their halves and, above fraction 0, the fine-tuning with its
  optimizer. The round is not part of it.
  """
  summary = evaluation.summary
  values = {
    'subject': str(run.subject_of(evaluation)),
    'corpus': summary.corpus_identity.fingerprint[:12],
    'vocabulary': settings_of(run).get('vocabulary'),
    'clients': _clients_digest(evaluation, fraction),
  }
  # A method with models of clients' own may leave clients out.
  if summary.kind == OWN_TEST.kind:
    del values['clients']
  values |= {
    name: value
    for name, value in summary.personalization.items()
    if fraction != 0.0 or name in _OF_ROWS
  }
  if fraction:
    optimizer = dataclasses.asdict(run.train_config.client_work)
    values |= {f'client_work.{n}': optimizer.get(n) for n in _FINE_TUNING}
  return _key(values)


def differing(keys: Sequence[Key]) -> dict[str, list[str]]:
  """Returns the values, each once, of what is not equal in all keys."""
  settings = list(map(dict, keys))
  names = dict.fromkeys(name for setting in settings for name in setting)
  values = {
    name: list(dict.fromkeys(s.get(name, '(not set)') for s in settings))
    for name in names
  }
  return {name: several for name, several in values.items() if len(several) > 1}


def names(
  runs: Sequence[Run],
  leave_out: Collection[str] = (),
  further: Sequence[Sequence[str]] | None = None,
) -> list[str]:
  """Returns a name for each run: its method and all that differs.

  Such as 'FedFish (AdamW 0.001, 4 bits)'. A setting that not all methods have
  is named where it is not its default, or differs within a method. Settings of
  `leave_out` are not named. `further` are further words for each run.
  """
  told = differing_words(runs, leave_out)
  if further:
    both = zip(told, further, strict=True)
    told = [list(dict.fromkeys([*a, *b])) for a, b in both]
  return [
    f'{run.method} ({", ".join(words)})' if words else run.method
    for run, words in zip(runs, told, strict=True)
  ]


def differing_words(
  runs: Sequence[Run], leave_out: Collection[str] = ()
) -> list[list[str]]:
  """Returns the words for what differs between runs, for each run.

  The words are those of docs/settings.md. The method is not among them.
  """
  settings = list(map(settings_of, runs))
  everything = dict.fromkeys(name for own in settings for name in own)
  unnamed = {NAME, *leave_out}
  differing = [n for n in everything if n not in unnamed and _differs(n, runs)]
  # The optimizer of the clients comes first.
  differing.sort(key=lambda n: n not in _FIRST)
  return [
    list(
      dict.fromkeys(
        _words(name, own, differing)
        for name in differing
        if name in own and _is_told(name, run, runs)
      )
    )
    for run, own in zip(runs, settings, strict=True)
  ]


def grouped(items: Iterable[Any], key: Callable) -> dict[Any, list]:
  """Returns the items by their key, in the order of first appearance."""
  groups: dict[Any, list] = {}
  for item in items:
    groups.setdefault(key(item), []).append(item)
  return groups


def _differs(name: str, runs: Sequence[Run]) -> bool:
  """Returns whether a setting tells the runs apart."""
  values = [settings_of(run)[name] for run in runs if name in settings_of(run)]
  if len({repr(value) for value in values}) > 1:
    return True
  return len(values) < len(runs) and any(_is_told(name, r, runs) for r in runs)


def _is_told(name: str, run: Run, runs: Sequence[Run]) -> bool:
  """Returns whether a run's own value of a differing setting is named."""
  own = settings_of(run)
  if name not in own:
    return False
  if all(name in settings_of(other) for other in runs):
    return True
  # The others have no such setting.
  same = [settings_of(r)[name] for r in runs if r.algorithm == run.algorithm]
  if len({repr(value) for value in same}) > 1:
    return True
  field = registry.settings_of(registry.find(run.algorithm)).get(
    name.partition('.')[2]
  )
  return bool(field) and own[name] != field.default


def _words(name: str, own: Mapping[str, Any], differing: Sequence[str]) -> str:
  """Returns a setting with its value, such as 'E = 8' or 'server Adam 0.1'."""
  section, _, setting = name.partition('.')
  value = own[name]
  if section in _OPTIMIZERS and setting in ('optimizer', 'learning_rate'):
    side = _OPTIMIZERS[section]
    rate = f'{own[f"{section}.learning_rate"]:g}'
    if f'{section}.optimizer' in differing:
      title = own[f'{section}.optimizer']
      return f'{side}{_TITLES.get(title, title)} {rate}'
    return f'{side or "client "}rate {rate}'
  if name == LOCAL_EPOCHS:
    return f'E = {value}'
  if name == NUM_ROUNDS:
    return count(value, 'round')
  if name == 'aggregation.bits':
    return f'{value} bits'
  side = {'client_work': 'client ', 'server': 'server '}.get(section, '')
  shown = f'{value:g}' if isinstance(value, float) else value
  shown = 'none' if value is None else shown
  return f'{side}{setting or section} {shown}'


def _find_settings(run: Run) -> dict[str, Any]:
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
  left_out = {*_WITHOUT_RESULTS, *SEEDS}
  if config.partition.scheme is None:
    left_out.add('seeds.partition_seed')
  method = registry.find(run.algorithm)
  return {
    name: value
    for name, value in values.items()
    if name not in left_out and registry.reads(method, name)
  }


def _clients_digest(evaluation: NamedEvaluation, fraction: float) -> str:
  """Returns a hash of the clients and of the size of what they are scored on.

  A prefix says how many clients there are, for a reader.
  """
  rows = evaluation.clients
  rows = rows[rows['fraction'] == fraction].sort_values('client_id')
  counts = ['num_evaluation_sequences', 'num_evaluation_tokens']
  if fraction:
    counts.append('num_personalization_sequences')
  digest = hashlib.sha256(rows[counts].to_numpy('int64').tobytes())
  for client_id in rows['client_id']:
    digest.update(len(client_id).to_bytes(8, 'big') + client_id)
  return f'{len(rows)} ({digest.hexdigest()[:8]})'


def _key(values: Mapping[str, Any]) -> Key:
  return tuple((name, repr(values[name])) for name in sorted(values))


def _key_among(run: Run, names: Sequence[str]) -> Key:
  """Returns the settings of some names, or sections, which end with a dot."""
  own = settings_of(run)
  return _key(
    {n: own[n] for n in own if n in names or f'{n.partition(".")[0]}.' in names}
  )
