"""The shipped configs of few, large clients: DiLoCo and centralised SGD."""

import pathlib

import numpy as np
import planned_configs
import pytest
import small_runs
import tensorflow as tf

from models import transformer
from tff_fedfish.cli.main import main
from tff_fedfish.config import load as config_loading
from tff_fedfish.evaluation import barrier
from tff_fedfish.evaluation.evaluator import build_evaluator
from tff_fedfish.planning import plan
from tff_fedfish.run import (
  build,
  checkpoints,
  client_data,
  cohorts,
  model_state,
  run_directory,
)
from tff_fedfish.run.row_source import row_source

_ROOT = pathlib.Path(__file__).parents[2]
_CENTRALIZED = str(_ROOT / 'docs/experiments/sweeps/centralized_tiny.py')


def _train(inputs, workdir, name, **settings):
  """Trains a config on the small corpus."""
  values = dict(
    client_work__num_local_epochs=1,
    client_work__max_sequences_per_client=None,
    cohorts__cohort_size=None,
    evaluation__num_clients=0,
    **settings,
  )
  command = ['train', '--config', name]
  arguments = small_runs.overrides(*inputs, **values)
  assert main([*command, '--workdir', str(workdir), *arguments]) == 0
  return run_directory.read_config(workdir)


def _weights(run, round_num):
  path = run / 'checkpoints' / f'round_{round_num:08d}'
  tensors = checkpoints.load_checkpoint(path).tensors
  num_tensors = sum('/trainable/' in name for name in tensors)
  prefix = model_state.TRAINABLE_PREFIX
  return [tensors[f'{prefix}{i}'] for i in range(num_tensors)]


def _clients(config):
  """Returns the clients' rows and the ids of those that train."""
  corpus = client_data.open_corpus(config, config.data.directory)
  tokenizer = client_data.open_tokenizer(config, config.data.vocabulary)
  rows = row_source(config).training_rows(corpus, tokenizer)
  split = row_source(config).split(corpus)
  return (
    rows,
    row_source(config).training_clients(split),
  )


@pytest.mark.slow
def test_centralised_rounds_are_one_plain_loop(small_tokens, tmp_path):
  run = tmp_path / 'run'
  config = _train(
    small_tokens,
    run,
    _CENTRALIZED,
    client_work__num_local_steps=4,
    training__num_rounds=3,
  )
  # 3 rounds of 4 steps: 12 steps of a loop without any federated code.
  source, clients = _clients(config)
  batches = []
  for round_num in (1, 2, 3):
    (client,) = cohorts.cohort(config, clients, source, round_num)
    rows = client.sequences()
    assert len(rows) == 4 * 4
    for start in range(0, 16, 4):
      part = slice(start, start + 4)
      batches.append((rows.tokens[part], rows.num_targets[part]))
  assert len(batches) == 12
  shape = config.transformer_config()
  weights = [
    tf.constant(w)
    for w in transformer.initial_weights(shape, config.seeds.model_seed)
  ]
  for tokens, num_targets in batches:
    with tf.GradientTape() as tape:
      tape.watch(weights)
      losses, _ = transformer.next_token_losses(
        shape, weights, tf.constant(tokens)
      )
      mask = tf.sequence_mask(num_targets, losses.shape[1], losses.dtype)
      loss = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)
    gradients = tape.gradient(loss, weights)
    weights = [
      w - config.client_work.learning_rate * tf.convert_to_tensor(g)
      for w, g in zip(weights, gradients, strict=True)
    ]
  found = _weights(run, 3)
  assert len(found) == len(weights)
  moved = max(
    np.abs(a - b).max() for a, b in zip(found, _weights(run, 0), strict=True)
  )
  assert moved > 1e-2
  for one, other in zip(found, weights, strict=True):
    np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.slow
def test_diloco_trains(small_tokens, tmp_path):
  run = tmp_path / 'run'
  config = _train(
    small_tokens,
    run,
    'diloco_tiny',
    client_work__num_local_steps=3,
    client_work__schedule_rounds=4,
    partition__num_clients=2,
    training__num_rounds=2,
  )
  assert config.partition.scheme == 'merge'
  rows = (run / 'metrics.csv').read_text('utf-8').splitlines()
  names = rows[0].split(',')
  last = dict(zip(names, rows[-1].split(','), strict=True))
  # 2 clients x 3 steps x 8 sequences.
  assert int(last['train/num_sequences']) == 48
  assert int(last['train/num_clients']) == 2


@pytest.mark.slow
def test_the_barrier_scores_rows_that_come_twice_once(small_tokens, tmp_path):
  run = tmp_path / 'run'
  config = _train(
    small_tokens,
    run,
    _CENTRALIZED,
    client_work__num_local_steps=50,
    client_work__local_batch_size=8,
    training__num_rounds=1,
  )
  source, clients = _clients(config)
  (client,) = cohorts.cohort(config, clients, source, 1)
  rows = client.sequences()
  once = rows.select(~rows.is_repeated)
  assert 0 < len(once) < len(rows) == 400
  evaluator = build_evaluator(config)
  expected = evaluator.score(tuple(_weights(run, 1)), once).loss
  other = evaluator.score(tuple(_weights(run, 1)), rows).loss
  process = build.build_learning_process(config)
  (entry,) = barrier.measure_clients(
    process, process.initialize(), _weights(run, 1), evaluator, [client]
  )
  assert entry.local_loss == pytest.approx(expected, rel=1e-6)
  assert entry.local_loss != pytest.approx(other, rel=1e-5)


def test_diloco_350m_is_planned():
  config = planned_configs.shipped('diloco_350m')
  found = plan.plan_round(config, timing=False)
  assert found.client_steps.num_local_steps == 500
  # 8 clients x 500 steps x 512 sequences x 1,024 targets.
  assert found.tokens_per_round == 8 * 500 * 512 * 1024
  assert found.num_weights > 300e6


@pytest.mark.parametrize('name', ['diloco_tiny', 'diloco_350m', _CENTRALIZED])
def test_dry_run(small_tokens, capsys, name):
  corpus, vocabulary = small_tokens
  values = {
    'data.directory': corpus,
    'data.vocabulary': vocabulary,
    'model.vocabulary_size': 256,
    'partition.num_clients': 2,
    'client_splits.held_out_fraction': 0.3,
    'evaluation.num_clients': 0,
    'engine.num_workers': 1,
  }
  arguments = [f'--config.{key}={value}' for key, value in values.items()]
  code = main(['train', '--config', name, '--dry_run', *arguments])
  printed = capsys.readouterr()
  assert code == 0, printed.err
  assert '1 up, 1 down (models per client)' in printed.out
  assert config_loading.load_config(name).cohorts.cohort_size is None
