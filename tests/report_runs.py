"""Writes small run directories whose numbers can be checked by hand."""

import csv
import json
import pathlib
import string
from collections.abc import Mapping, Sequence
from typing import Any

from tff_fedfish.data.client_ids import text_to_client_id
from tff_fedfish.evaluation import results
from tff_fedfish.evaluation.summary import Summary
from tff_fedfish.evaluation.tables import ClientBarrier, ClientEvaluation
from tff_fedfish.reporting import findings, loading
from tff_fedfish.run.corpus_identity import CorpusIdentity


def _write_csv(path, header, rows):
  with path.open('w', newline='') as file:
    csv.writer(file, lineterminator='\n').writerows([header, *rows])


def _config(algorithm, num_local_epochs, num_rounds):
  return dict(
    schema_version=3,
    algorithm=dict(name=algorithm),
    client_work=dict(
      num_local_epochs=num_local_epochs,
      local_batch_size=4,
      max_sequences_per_client=16,
      learning_rate=0.05,
    ),
    server=dict(optimizer='adam', learning_rate=0.001),
    model=dict(preset='tiny', width=128),
    data=dict(
      directory='corpora/debian',
      vocabulary='vocabularies/debian',
      sequence_length=128,
    ),
    cohorts=dict(cohort_size=8),
    client_splits=dict(held_out_fraction=0.1),
    seeds=dict(model_seed=1, cohort_seed=2, split_seed=3, shuffle_seed=4),
    training=dict(num_rounds=num_rounds),
    evaluation=dict(every_num_rounds=2, num_clients=16),
    checkpoints=dict(every_num_rounds=10, keep_last=2),
  )


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
  rows = []
  for r, loss in enumerate(held_out_losses):
    traffic = (units_per_round * r, (units_per_round + 1) * r)
    held_out = ('', '') if loss is None else (loss, r / 100)
    rows.append((r, *((9.0 - r, 0) if r else ('', '')), *traffic, *held_out))
  _write_csv(
    directory / 'metrics.csv',
    (
      *('round', 'train/loss', 'train/num_non_finite_clients'),
      *('communication/uplink_units', 'communication/total_units'),
      *('held_out/loss', 'held_out/accuracy'),
    ),
    rows,
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
  start = {
    'command': '/home/ann/bin/fedfish train',
    'reads': {'checkpoint': {'path': '/home/ann/runs'}},
    'environment': {
      'packages': {'tensorflow': '2.14.1', 'ann-secret': '1.0'},
      'cores': 2,
    },
  }
  (directory / 'starts.jsonl').write_text(json.dumps(start) + '\n{"cut o')
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
  facts: Mapping[str, Any] | None = None,
) -> pathlib.Path:
  """Writes an evaluation directory.

  `losses[f]` are the clients' losses after personalization on the fraction f;
  accuracies are (10 - loss) / 100. `barriers` are (local loss, global loss,
  local accuracy, global accuracy) of the clients. `facts` are other fields of
  the summary.
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
  names = ('local_loss', 'global_loss', 'local_accuracy', 'global_accuracy')
  rows = [
    ClientBarrier(
      client_id=b'client%d' % number, **dict(zip(names, row, strict=True))
    )
    for number, row in enumerate(barriers)
  ] or None
  facts = dict(facts or {})
  identity = {'name': corpus, 'key': None, 'part': None, 'grouping': corpus}
  identity = facts.pop('corpus_identity', identity | {'fingerprint': corpus})
  summary = Summary(
    **{
      'kind': kind,
      'corpus': corpus,
      'corpus_identity': CorpusIdentity(**identity),
      'checkpoint': {'round': round_num},
      'num_clients': len(client_ids),
      'skipped_clients': {},
      'unknown_token_fraction': None,
      'personalization': dict(personalization or {}),
      **facts,
    }
  )
  directory = run / 'evaluations' / name
  results.write_evaluation(directory, summary, clients, rows)
  return directory


Losses = float | tuple[float, ...] | dict[float, tuple[float, ...]]


def write_scored(
  directory: pathlib.Path,
  losses: Losses,
  *,
  seed: int | None = None,
  settings: Mapping[str, Any] | None = None,
  evaluation: Mapping[str, Any] | None = None,
  **options: Any,
) -> pathlib.Path:
  """Writes a run and its evaluation `e`, with clients 'a', 'b' and so on.

  `losses` are of clients without personalization, or by fraction; one number is
  that of two clients. `evaluation` and `options` are further ones of
  `write_evaluation` and `write_run`.
  """
  if isinstance(losses, float):
    losses = (losses,) * 2
  seeds = {} if seed is None else {'seeds.model_seed': seed}
  run = write_run(directory, settings=seeds | dict(settings or {}), **options)
  losses = losses if isinstance(losses, dict) else {0.0: losses}
  ids = tuple(string.ascii_lowercase[: len(next(iter(losses.values())))])
  given = {'client_ids': ids, 'losses': losses} | dict(evaluation or {})
  write_evaluation(run, 'e', **given)
  return run


def write_methods(
  root: pathlib.Path,
  losses: Mapping[str, Sequence[Losses]],
  **options: Mapping[str, Any],
) -> list[pathlib.Path]:
  """Writes a run for the losses of each seed, from 0 on, of each method.

  `options` are those of `write_scored`, by the method, or `all`.
  """
  return [
    write_scored(
      root / f'{method}{seed}',
      own,
      algorithm=method,
      seed=seed,
      **(options.get('all', {}) | options.get(method, {})),
    )
    for method, of_method in losses.items()
    for seed, own in enumerate(of_method)
  ]


def add_metrics(run: pathlib.Path, **columns: Sequence[Any]) -> None:
  """Adds columns to metrics.csv; `validation__loss` is 'validation/loss'."""
  path = run / 'metrics.csv'
  with path.open(newline='') as file:
    header, *rows = csv.reader(file)
  header += [name.replace('__', '/') for name in columns]
  values = zip(*columns.values(), strict=True)
  _write_csv(
    path, header, [[*r, *v] for r, v in zip(rows, values, strict=True)]
  )


def read_report(directories: Sequence[pathlib.Path]) -> findings.Findings:
  """Returns the findings of runs."""
  return findings.read_findings(loading.load_runs(directories))


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
