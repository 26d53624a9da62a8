"""Tables 2 to 6 of Dhawan et al. (2024), FedFish, as facts.

Source: "Leveraging Function Space Aggregation for Federated Learning at Scale",
https://arxiv.org/abs/2311.10291v2. The numbers of seeds and intervals are not
printed there. What the tables call perplexity lies between 3.4 and 7.1 at token
accuracies of 16 to 44 %; it is read as the mean cross-entropy in nats, whose
exponential the perplexity is.
"""

import dataclasses
import types
from collections.abc import Iterator, Mapping

EMNIST = 'EMNIST'
CIFAR100 = 'CIFAR100'
STACK_OVERFLOW = 'Stack Overflow'
C4 = 'C4'
CC_NEWS = 'CC-News'

FED_AVG = 'fed_avg'
FED_FISH = 'fed_fish'
LAST_EPOCH = 'last_epoch'
"""FedFish whose Fisher is of the last local epoch's gradients: Table 6."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Tables 1 and 2: what one corpus was trained with."""

  model: str
  presets: tuple[str, ...]
  """Presets of `config.model.preset` that are this model."""
  cohort_size: int
  num_rounds: int
  local_batch_size: int
  max_sequences_per_client: int
  sequence_length: int | None
  personalization_epochs: int
  server_learning_rate: float
  client_learning_rate: float
  num_evaluated_clients: str
  """As Table 1 prints it."""


SETTINGS: Mapping[str, Settings] = types.MappingProxyType(
  {
    EMNIST: Settings(
      model='a CNN of two convolutions',
      presets=('emnist_cnn',),
      cohort_size=64,
      num_rounds=1500,
      local_batch_size=10,
      max_sequences_per_client=100,
      sequence_length=None,
      personalization_epochs=1,
      server_learning_rate=1e-3,
      client_learning_rate=1e-3,
      num_evaluated_clients='3.4K',
    ),
    CIFAR100: Settings(
      model='ResNet-18 with group norm',
      presets=('resnet18',),
      cohort_size=64,
      num_rounds=1500,
      local_batch_size=25,
      max_sequences_per_client=100,
      sequence_length=None,
      personalization_epochs=4,
      server_learning_rate=1e-3,
      client_learning_rate=1e-3,
      num_evaluated_clients='100',
    ),
    STACK_OVERFLOW: Settings(
      model='a 350M decoder',
      presets=('350m',),
      cohort_size=16,
      num_rounds=1500,
      local_batch_size=4,
      max_sequences_per_client=16,
      sequence_length=128,
      personalization_epochs=4,
      server_learning_rate=1e-2,
      client_learning_rate=1e-3,
      num_evaluated_clients='204K',
    ),
    C4: Settings(
      model='a 1.5B decoder',
      presets=('1.5b',),
      cohort_size=8,
      num_rounds=10000,
      local_batch_size=4,
      max_sequences_per_client=16,
      sequence_length=1024,
      personalization_epochs=4,
      server_learning_rate=1e-2,
      client_learning_rate=1e-3,
      num_evaluated_clients='8.5K',
    ),
  }
)
"""Results by training corpus; sequences of 128 tokens in evaluations."""

_SO = STACK_OVERFLOW

# fmt: off
# Corpus, E, method; global accuracy (%) at fixed compute and at fixed rounds,
# then personalized, the same.
_TABLE_3 = (
  (EMNIST, 4, FED_AVG, 81.38, 81.38, 83.09, 83.09),
  (EMNIST, 4, FED_FISH, 82.64, 82.64, 83.44, 83.44),
  (EMNIST, 8, FED_AVG, 82.05, 82.24, 83.46, 83.82),
  (EMNIST, 8, FED_FISH, 83.19, 84.42, 84.37, 85.6),
  (EMNIST, 16, FED_AVG, 76.45, 77.52, 77.96, 79.63),
  (EMNIST, 16, FED_FISH, 79.01, 82.86, 81.05, 84.96),
  (CIFAR100, 4, FED_AVG, 35.75, 35.75, 37.06, 37.06),
  (CIFAR100, 4, FED_FISH, 36.88, 36.88, 41.31, 41.31),
  (CIFAR100, 16, FED_AVG, 28.56, 33.28, 36.00, 32.13),
  (CIFAR100, 16, FED_FISH, 31.63, 37.72, 40.53, 44.69),
)

# Trained on, E, evaluated on, method; (accuracy in %, cross-entropy) at 0, 25
# and 50 % of the data, after all rounds R.
_TABLE_4 = (
  (_SO, 8, _SO, FED_AVG, (32.00, 3.79), None, (32.34, 3.90)),
  (_SO, 8, _SO, FED_FISH, (32.98, 3.77), None, (34.28, 3.68)),
  (_SO, 16, _SO, FED_AVG, (21.77, 5.56), None, (25.46, 4.61)),
  (_SO, 16, _SO, FED_FISH, (31.27, 3.96), None, (32.60, 3.81)),
  (C4, 1, C4, FED_AVG, (30.16, 4.26), (30.81, 4.21), (30.95, 4.20)),
  (C4, 1, C4, FED_FISH, (31.15, 4.19), (32.10, 4.12), (32.34, 4.11)),
  (C4, 16, C4, FED_AVG, (31.04, 4.13), (32.26, 4.12), (32.73, 4.08)),
  (C4, 16, C4, FED_FISH, (32.37, 3.99), (33.54, 3.92), (33.98, 3.87)),
  (C4, 1, _SO, FED_AVG, (17.91, 5.29), (19.85, 5.13), (21.58, 5.03)),
  (C4, 1, _SO, FED_FISH, (19.55, 5.101), (22.07, 4.91), (23.38, 4.815)),
  (C4, 16, _SO, FED_AVG, (18.83, 5.13), (19.63, 5.201), (22.98, 4.69)),
  (C4, 16, _SO, FED_FISH, (19.54, 5.16), (26.89, 4.32), (27.77, 4.22)),
  (C4, 1, CC_NEWS, FED_AVG, (29.03, 4.38), (29.45, 4.34), (29.73, 4.31)),
  (C4, 1, CC_NEWS, FED_FISH, (29.53, 4.41), (30.14, 4.35), (30.61, 4.32)),
  (C4, 16, CC_NEWS, FED_AVG, (29.96, 4.25), (29.69, 4.35), (31.00, 4.21)),
  (C4, 16, CC_NEWS, FED_FISH, (31.00, 4.15), (31.75, 4.08), (32.58, 3.98)),
)

# The same after R / 2 rounds.
_TABLE_5 = (
  (C4, 1, C4, FED_AVG, (26.82, 4.67), (27.56, 4.61), (27.73, 4.60)),
  (C4, 1, C4, FED_FISH, (27.69, 4.63), (28.70, 4.55), (28.91, 4.54)),
  (C4, 16, C4, FED_AVG, (28.63, 4.42), (29.84, 4.37), (30.11, 4.39)),
  (C4, 16, C4, FED_FISH, (30.33, 4.28), (31.54, 4.11), (31.61, 4.10)),
  (C4, 1, _SO, FED_AVG, (17.10, 5.38), (19.92, 5.20), (21.78, 5.10)),
  (C4, 1, _SO, FED_FISH, (17.25, 5.41), (19.62, 5.2), (21.10, 5.08)),
  (C4, 16, _SO, FED_AVG, (18.57, 5.29), (16.23, 7.03), (18.91, 6.09)),
  (C4, 16, _SO, FED_FISH, (17.80, 5.42), (20.81, 4.77), (22.78, 4.58)),
  (C4, 1, CC_NEWS, FED_AVG, (26.03, 4.79), (26.44, 4.75), (26.72, 4.72)),
  (C4, 1, CC_NEWS, FED_FISH, (26.23, 4.86), (26.88, 4.80), (27.34, 4.76)),
  (C4, 16, CC_NEWS, FED_AVG, (27.55, 4.58), (27.23, 4.59), (28.02, 4.55)),
  (C4, 16, CC_NEWS, FED_FISH, (28.91, 4.44), (29.86, 4.29), (30.06, 4.27)),
)

# E, method; at 0 and 50 %, trained and evaluated on C4. FedFish with the Fisher
# of the last epoch. 32.72 is printed where Table 4 has 32.73.
_TABLE_6 = (
  (1, FED_AVG, (30.16, 4.26), (30.95, 4.20)),
  (1, FED_FISH, (32.10, 4.10), (34.86, 3.93)),
  (16, FED_AVG, (31.04, 4.13), (32.72, 4.08)),
  (16, FED_FISH, (30.28, 4.07), (44.31, 3.42)),
)
# fmt: on


@dataclasses.dataclass(frozen=True)
class Result:
  """One printed number.

  Attributes:
    table: 3 to 6.
    corpus: That was trained on.
    num_local_epochs: E.
    method: `FED_AVG`, `FED_FISH` or `LAST_EPOCH`.
    evaluated_on: Whose clients were scored.
    stage: 'fixed compute', 'fixed rounds', 'last' or 'half': what was trained.
    fraction: Share of a client's data that was personalized on; 0.5 is assumed
      for Table 3, which does not say it.
    measure: 'accuracy', in [0, 1], or 'loss', in nats.
    value: The number.
  """

  table: int
  corpus: str
  num_local_epochs: int
  method: str
  evaluated_on: str
  stage: str
  fraction: float
  measure: str
  value: float


def find_result(**wanted: str | int | float) -> Result | None:
  """Returns the number with all the given attributes, or None.

  Args:
    **wanted: Attributes of `Result`; they must leave one at most.
  """
  found = [
    result
    for result in RESULTS
    if all(getattr(result, name) == value for name, value in wanted.items())
  ]
  if len(found) > 1:
    raise ValueError(f'One result must have {wanted}, but {len(found)} have.')
  return found[0] if found else None


def _results() -> Iterator[Result]:
  for corpus, epochs, method, *values in _TABLE_3:
    places = [
      (stage, fraction)
      for fraction in (0.0, 0.5)
      for stage in ('fixed compute', 'fixed rounds')
    ]
    for (stage, fraction), value in zip(places, values, strict=True):
      key = (3, corpus, epochs, method, corpus, stage, fraction)
      yield Result(*key, 'accuracy', _share(value))
  for table, stage, rows in ((4, 'last', _TABLE_4), (5, 'half', _TABLE_5)):
    for corpus, epochs, evaluated_on, method, *pairs in rows:
      key = (table, corpus, epochs, method, evaluated_on, stage)
      yield from _scores(key, (0.0, 0.25, 0.5), pairs)
  for epochs, method, *pairs in _TABLE_6:
    method = LAST_EPOCH if method == FED_FISH else method
    key = (6, C4, epochs, method, C4, 'last')
    yield from _scores(key, (0.0, 0.5), pairs)


def _scores(key, fractions, pairs):
  for fraction, pair in zip(fractions, pairs, strict=True):
    if pair:
      yield Result(*key, fraction, 'accuracy', _share(pair[0]))
      yield Result(*key, fraction, 'loss', pair[1])


def _share(percent: float) -> float:
  return round(percent / 100, 6)


RESULTS: tuple[Result, ...] = tuple(_results())
"""All printed numbers."""
