"""Writes small run directories whose numbers can be checked by hand."""

import csv
import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import pytest

from tff_fedfish.data.client_ids import text_to_client_id
from tff_fedfish.evaluation import results
from tff_fedfish.evaluation.summary import (
  EffectiveClients,
  summarize_evaluation,
)
from tff_fedfish.evaluation.tables import ClientBarrier, ClientEvaluation
from tff_fedfish.reporting.loading import load_runs
from tff_fedfish.reporting.report import write_report
from tff_fedfish.run.corpus_identity import CorpusIdentity


def _write_csv(path, header, rows):
  with path.open('w', newline='') as file:
    writer = csv.writer(file, lineterminator='\n')
    writer.writerow(header)
    writer.writerows(rows)


def _config(algorithm, num_local_epochs, num_rounds):
  return {
    'schema_version': 3,
    'algorithm': {
      'name': algorithm,
      'fisher_estimator': 'extra_pass',
      'fisher_reduction': 'sum',
      'client_weighting': 'num_examples',
      'relative_floor': 1e-08,
    },
    'client_work': {
      'num_local_epochs': num_local_epochs,
      'local_batch_size': 4,
      'max_sequences_per_client': 16,
      'learning_rate': 0.05,
    },
    'server': {
      'optimizer': 'adam',
      'learning_rate': 0.001,
      'beta_1': 0.9,
      'beta_2': 0.999,
      'epsilon': 1e-07,
    },
    'model': {
      'preset': 'tiny',
      'num_layers': 4,
      'width': 128,
      'num_heads': 4,
      'vocabulary_size': 2048,
    },
    'data': {
      'directory': 'corpora/debian',
      'vocabulary': 'vocabularies/debian',
      'sequence_length': 128,
    },
    'cohorts': {'cohort_size': 8},
    'client_splits': {'held_out_fraction': 0.1},
    'seeds': {
      'model_seed': 1,
      'cohort_seed': 2,
      'split_seed': 3,
      'shuffle_seed': 4,
    },
    'training': {'num_rounds': num_rounds},
    'evaluation': {'every_num_rounds': 2, 'num_clients': 16},
    'checkpoints': {'every_num_rounds': 10, 'keep_last': 2},
  }


def write_run(
  directory: pathlib.Path,
  *,
  algorithm: str = 'fed_fish',
  num_local_epochs: int = 1,
  held_out_losses: tuple[float | None, ...] = (8.0, 7.0, 6.5),
  num_rounds: int | None = None,
  units_per_round: int = 1,
  settings: Mapping[str, Any] | None = None,
) -> pathlib.Path:
  """Writes config, metrics, timings and environment of a run.

  `settings` are further ones by dotted name; None takes one away. Row r has
  held-out loss `held_out_losses[r]` (None: an empty cell), accuracy r / 100,
  train loss 9 - r and `units_per_round` x r uplink units. Rounds take 30, 2, 4,
  2, 4, ... seconds, round 0 takes 100.
  """
  directory.mkdir(parents=True, exist_ok=True)
  last_round = len(held_out_losses) - 1
  config = _config(
    algorithm,
    num_local_epochs,
    max(last_round, 1) if num_rounds is None else num_rounds,
  )
  for name, value in (settings or {}).items():
    section, key = name.split('.')
    config.setdefault(section, {})[key] = value
    if value is None:
      del config[section][key]
  if 'corpus' in config['data']:
    # Of images, which have no tokens.
    del config['data']['vocabulary']
    config['data'].pop('sequence_length', None)
    is_mnist = config['data']['corpus'].startswith(('mnist', 'emnist'))
    config['model'] = {'preset': 'emnist_cnn' if is_mnist else 'resnet18'}
  (directory / 'config.json').write_text(json.dumps(config))
  _write_csv(
    directory / 'metrics.csv',
    (
      'round',
      'train/loss',
      'train/num_non_finite_clients',
      'communication/uplink_units',
      'communication/total_units',
      'held_out/loss',
      'held_out/accuracy',
    ),
    [
      (
        r,
        9.0 - r if r else '',
        0 if r else '',
        units_per_round * r,
        (units_per_round + 1) * r,
        '' if loss is None else loss,
        '' if loss is None else r / 100,
      )
      for r, loss in enumerate(held_out_losses)
    ],
  )
  _write_csv(
    directory / 'timings.csv',
    ('round', 'seconds', 'tokens_per_second', 'peak_memory_bytes'),
    [
      (
        r,
        (100.0, 30.0)[r] if r < 2 else 2.0 + 2.0 * (r % 2),
        1000.0 + r,
        2**30 * (1 + r % 2),
      )
      for r in range(last_round + 1)
    ],
  )
  (directory / 'environment.json').write_text(
    json.dumps({'versions': {'tensorflow': '2.14.1'}, 'num_cores': 2})
  )
  return directory


def write_evaluation(
  run: pathlib.Path,
  name: str,
  *,
  kind: str = 'held_out',
  corpus: str = 'debian_descriptions',
  round_num: int = 2,
  losses: dict[float, tuple[float, ...]] | None = None,
  client_ids: tuple[str, ...] = ('a.org', 'b.org', 'c.org', 'd.org'),
  barriers: tuple[tuple[float, float, float, float], ...] = (),
  personalization: Mapping[str, Any] | None = None,
  effective_clients: float | None = None,
  facts: Mapping[str, Any] | None = None,
) -> pathlib.Path:
  """Writes an evaluation directory.

  `losses[f]` are the clients' losses after personalization on the fraction f;
  intervals are mean -/+ 0.25, accuracies (10 - loss) / 100. `barriers` are
  (local loss, global loss, local accuracy, global accuracy) of the clients.
  `facts` are other fields of the summary.
  """
  losses = losses or {0.0: (6.0, 7.0, 5.0, 6.0), 0.5: (5.0, 6.5, 5.5, 4.0)}
  before = losses.get(0.0, next(iter(losses.values())))
  clients = [
    ClientEvaluation(
      client_id=text_to_client_id(client_id),
      fraction=fraction,
      num_evaluation_sequences=4,
      num_evaluation_tokens=500,
      num_personalization_sequences=int(8 * fraction),
      loss_before=b,
      accuracy_before=(10 - b) / 100,
      loss_after=a,
      accuracy_after=(10 - a) / 100,
    )
    for fraction, after in losses.items()
    for client_id, b, a in zip(client_ids, before, after, strict=True)
  ]
  rows = [
    ClientBarrier(
      client_id=b'client%d' % number,
      local_loss=row[0],
      global_loss=row[1],
      local_accuracy=row[2],
      global_accuracy=row[3],
    )
    for number, row in enumerate(barriers)
  ] or None
  facts = dict(facts or {})
  identity = {'name': corpus, 'key': None, 'part': None, 'grouping': corpus}
  identity = facts.pop('corpus_identity', identity | {'fingerprint': corpus})
  summary = summarize_evaluation(
    clients,
    barriers=rows,
    effective_clients=effective_clients
    and EffectiveClients(
      mean=effective_clients, uninformed_fraction=None, of_weights=None
    ),
    skipped_clients={},
    kind=kind,
    corpus=corpus,
    corpus_identity=CorpusIdentity(**identity),
    checkpoint={'round': round_num},
    personalization=dict(personalization or {}),
  )
  fractions = tuple(
    dataclasses.replace(
      scores,
      loss=_with_interval(scores.loss, 0.25),
      accuracy=_with_interval(scores.accuracy, 0.0025),
    )
    for scores in summary.fractions
  )
  if barrier := summary.client_server_barrier:
    barrier = dataclasses.replace(
      barrier, loss=_with_interval(barrier.loss, 0.1)
    )
  directory = run / 'evaluations' / name
  results.write_evaluation(
    directory,
    dataclasses.replace(
      summary,
      **{'fractions': fractions, 'client_server_barrier': barrier} | facts,
    ),
    clients,
    rows,
  )
  return directory


def _with_interval(statistics, half_width):
  ends = {}
  if statistics.mean is not None:
    ends['ci_low'] = statistics.mean - half_width
    ends['ci_high'] = statistics.mean + half_width
  return dataclasses.replace(statistics, **ends)


def write_pair(root: pathlib.Path) -> list[pathlib.Path]:
  """Writes FedAvg and FedFish, E = 8, each with all kinds of evaluation."""
  average = write_run(root / 'average', algorithm='fed_avg', num_local_epochs=8)
  fish = write_run(
    root / 'fish',
    num_local_epochs=8,
    held_out_losses=(8.0, 6.5, 6.0),
    units_per_round=2,
  )
  write_evaluation(
    average,
    'held_out',
    barriers=((5.0, 5.5, 0.30, 0.20), (4.0, 4.2, 0.40, 0.41)),
  )
  write_evaluation(
    fish,
    'held_out',
    losses={0.0: (5.5, 6.5, 5.0, 6.0), 0.5: (5.0, 6.0, 4.5, 4.5)},
    barriers=((5.0, 5.2, 0.30, 0.25), (4.0, 4.3, 0.40, 0.40)),
  )
  for run, loss in ((average, 7.0), (fish, 6.5)):
    write_evaluation(
      run,
      'sotu',
      kind='transfer',
      corpus='sotu_by_president',
      client_ids=('Lincoln', 'Grant'),
      losses={0.0: (loss, loss + 0.5), 0.25: (loss - 0.5, loss + 0.6)},
    )
  return [average, fish]


def write_sweep(
  root: pathlib.Path,
  gains: Mapping[tuple[str, int, int], float],
  *,
  num_seeds: int = 3,
  settings: Mapping[str, Any] | None = None,
) -> list[pathlib.Path]:
  """Writes the runs of a sweep, each evaluated after its last round.

  Seed k of (algorithm, E, R) with gain g has losses 8 - g - k / 10 of both
  clients, and 1 less after personalization on half of their data.
  """
  runs = []
  for (algorithm, epochs, num_rounds), gain in gains.items():
    for seed in range(num_seeds):
      run = write_run(
        root / f'{algorithm}-E{epochs}-R{num_rounds}-seed{seed}',
        algorithm=algorithm,
        num_local_epochs=epochs,
        held_out_losses=(8.0, *[8.0 - gain - seed / 10] * num_rounds),
        units_per_round=2 if algorithm == 'fed_fish' else 1,
        settings={'seeds.model_seed': seed, **(settings or {})},
      )
      loss = 8.0 - gain - seed / 10
      write_evaluation(
        run,
        'held_out',
        round_num=num_rounds,
        client_ids=('a.org', 'b.org'),
        losses={0.0: (loss,) * 2, 0.5: (loss - 1.0,) * 2},
      )
      runs.append(run)
  return runs


@pytest.fixture(name='write_sweep', scope='session')
def _write_sweep():
  return write_sweep


@pytest.fixture(name='write_run', scope='session')
def _write_run():
  return write_run


@pytest.fixture(name='write_evaluation', scope='session')
def _write_evaluation():
  return write_evaluation


@pytest.fixture(scope='session')
def pair(tmp_path_factory):
  """Directories of FedAvg and FedFish, E = 8. Tests must not change them."""
  return write_pair(tmp_path_factory.mktemp('pair'))


@pytest.fixture(scope='session')
def report_of_pair(pair, tmp_path_factory):
  """The pair's report, to be read only: it takes seconds."""
  root = tmp_path_factory.mktemp('report_of_pair')
  return write_report(load_runs(pair), root / 'report').parent
