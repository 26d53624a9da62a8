"""Time that clients' kept tensors add to a round of the `tiny` model.

FedAvg beside FedAvg whose clients keep the model they trained: read and checked
before the round, written, hashed and committed after it, old ones removed. Both
train the demo's config, by turns; a round is the time from one row of
TensorBoard's events to the next.
"""

import statistics
import subprocess
import sys

import pytest
from benchmarks.shared import ENVIRONMENT, ROOT
from tensorboard.backend.event_processing.event_accumulator import (
  EventAccumulator,
)

from tff_fedfish.printing import print_table

_METHODS = ('fed_avg', 'own_methods.kept_model')
_NUM_TURNS = 3
_NUM_ROUNDS = 30
# Rounds in which graphs are traced, and clients come for the first time.
_NUM_LEFT_OUT = 10


def _round_seconds(method, inputs, workdir):
  corpus, vocabulary = inputs
  settings = {
    'algorithm.name': method,
    'data.directory': corpus,
    'data.vocabulary': vocabulary,
    'cohorts.cohort_size': 8,
    'client_work.max_sequences_per_client': 8,
    'client_work.num_local_epochs': 2,
    'training.num_rounds': _NUM_ROUNDS,
    'evaluation.num_clients': 0,
    'checkpoints.every_num_rounds': 10,
    'checkpoints.keep_last': 1,
  }
  subprocess.run(
    [sys.executable, '-m', 'tff_fedfish', 'train', '--config', 'demo']
    + ['--workdir', str(workdir)]
    + [f'--config.{name}={value}' for name, value in settings.items()],
    check=True,
    cwd=ROOT,
    env=ENVIRONMENT,
    capture_output=True,
  )
  events = EventAccumulator(str(workdir / 'tensorboard')).Reload()
  times = [event.wall_time for event in events.Scalars('train/loss')]
  seconds = [b - a for a, b in zip(times, times[1:], strict=False)]
  return statistics.median(seconds[_NUM_LEFT_OUT:])


@pytest.mark.benchmark
def test_cost_of_kept_models(tmp_path):
  from tff_fedfish.cli.main import main

  corpus = tmp_path / 'corpus'
  files = ROOT / 'tff_fedfish' / 'corpora' / 'debian_descriptions'
  arguments = [
    '--input',
    f'{files}/c4-train.*.json.gz',
    '--output',
    str(corpus),
  ]
  assert main(['group', 'c4', *arguments]) == 0
  inputs = corpus, ROOT / 'tff_fedfish' / 'corpora' / 'demo_vocabulary'
  rows, ratios = [], []
  for turn in range(_NUM_TURNS):
    plain, kept = (
      _round_seconds(method, inputs, tmp_path / f'{method}{turn}')
      for method in _METHODS
    )
    ratios.append(kept / plain)
    rows.append([str(turn + 1), f'{plain:.3f}', f'{kept:.3f}'])
    rows[-1].append(f'{ratios[-1]:.3f}')
  print_table(
    'Seconds per round of 8 clients, median',
    ['turn', 'FedAvg', 'with kept models', 'ratio'],
    rows,
  )
  verdict = 'met' if statistics.median(ratios) <= 1.15 else 'short'
  print(
    f'Goal: at most 1.15; median {statistics.median(ratios):.3f}: {verdict}'
  )
