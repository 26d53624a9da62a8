"""Runs of PFNM, whose solution may be wider than the model of the clients."""

import csv
import dataclasses
import json
import shutil

import numpy as np
import pytest
import safetensors.numpy
import small_image_runs
import tensorflow as tf
from one_shot_runs import SETTINGS as SHARED
from one_shot_runs import weights as _weights
from stateful_runs import assert_same_run

from models.image_model_config import ImageModelConfig
from models.image_models import IMAGE_CLASSIFIERS
from tff_fedfish.cli.main import main
from tff_fedfish.evaluation import statistics
from tff_fedfish.evaluation.results import read_evaluation
from tff_fedfish.run import (
  build,
  checkpoints,
  cohorts,
  run_directory,
  start_model,
)
from tff_fedfish.run.row_source import row_source
from tff_fedfish.training import check

# Small noise, and clients that part: hidden layers grow, some less than twice.
_SHAPE = ImageModelConfig(name='lenet', num_classes=10, image_shape=(28, 28, 1))
_SETTINGS = dict(
  algorithm__name='pfnm',
  algorithm__sigma=0.02,
  algorithm__sigma0=0.1,
  algorithm__num_validation_rows=20,
  client_work__learning_rate=0.2,
  client_work__num_local_epochs=6,
  **SHARED,
)


def _train(images, workdir, **settings):
  return small_image_runs.train(images, workdir, **_SETTINGS | settings)


def _last_row(path):
  with open(path, newline='') as file:
    return list(csv.DictReader(file))[-1]


def _checkpoint(run):
  return checkpoints.load_checkpoint(checkpoints.resolve_checkpoint(run))


def _scores(weights, rows):
  """Returns mean loss and accuracy on a client's images."""
  batch = rows.batch_features()
  images, labels = batch['x']['image'].astype(np.float32) / 255, batch['y']
  logits = IMAGE_CLASSIFIERS['lenet'].logits(
    [tf.constant(w) for w in weights], images
  )
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
  is_right = np.argmax(logits, axis=1) == labels
  return float(tf.reduce_mean(losses)), is_right.mean()


@pytest.fixture(scope='module')
def wide(small_images, tmp_path_factory):
  """A run whose solution is wider, with the barrier of its round."""
  run = tmp_path_factory.mktemp('pfnm') / 'wide'
  settings = dict(evaluation__barrier_every_num_rounds=1)
  assert _train(small_images, run, **settings) == 0
  return run


@pytest.fixture(scope='module')
def checked(wide):
  """Its inputs, opened again."""
  return check.check_run(run_directory.read_config(wide))


@pytest.mark.slow
def test_the_checkpoint_says_how_wide_the_solution_is(wide):
  weights, widths = (
    _weights(wide),
    _checkpoint(wide).contents['model_widths'],
  )
  own = [6, 16, 120, 84]
  assert all(a <= b <= 2 * a for a, b in zip(own, widths, strict=True))
  assert own[0] < widths[0] < 2 * own[0]
  grown = dataclasses.replace(_SHAPE, widths=tuple(widths))
  shapes = grown.weight_shapes()
  assert [weight.shape for weight in weights] == list(shapes.values())
  first = checkpoints.path_of(wide / 'checkpoints', 0)
  assert 'model_widths' not in checkpoints.load_checkpoint(first).contents


@pytest.mark.slow
def test_the_round_scores_the_solution(wide, checked):
  halves = [halves.evaluation for _, halves in checked.sample.clients]
  scores = np.array([_scores(_weights(wide), rows) for rows in halves])
  row = _last_row(wide / 'metrics.csv')
  found = [float(row[f'held_out/{name}']) for name in ('loss', 'accuracy')]
  np.testing.assert_allclose(found, scores.mean(0), rtol=1e-5)
  assert row['one_shot/num_uploads'] == '4'
  assert 0 <= float(row['one_shot/validation_accuracy']) <= 1


@pytest.mark.slow
def test_the_barrier_is_that_of_the_solution(wide, checked):
  config = run_directory.read_config(wide)
  cohort = cohorts.cohort(
    config,
    row_source(config).training_clients(checked.split),
    row_source(config).training_rows(checked.corpus, None),
    1,
  )
  start = config.in_round(0)
  process = build.build_learning_process(start, num_clients=len(cohort))
  losses = []
  for client in cohort:
    (trained,) = process.trained_models(process.initialize(), [client])
    rows = client.sequences()
    local, _ = _scores(trained['trainable'], rows)
    losses.append(_scores(_weights(wide), rows)[0] - local)
  row = _last_row(wide / 'metrics.csv')
  assert float(row['barrier/loss']) == pytest.approx(np.mean(losses), rel=1e-4)


@pytest.mark.slow
def test_evaluation_and_export(wide, small_images, checked, tmp_path):
  arguments = ['--data', str(small_images), '--fractions', '0,0.5']
  arguments += ['--checkpoint', str(wide), '--output', str(tmp_path / 'scores')]
  assert main(['evaluate', *arguments]) == 0
  found = read_evaluation(tmp_path / 'scores')
  halves = [halves.evaluation for _, halves in checked.sample.clients]
  scores = np.array([_scores(_weights(wide), rows) for rows in halves])
  before, after = statistics.fraction_scores(found.clients)
  found = before.loss.mean, before.accuracy.mean
  np.testing.assert_allclose(found, scores.mean(0), rtol=1e-5)
  # The wide model is fine-tuned, too.
  assert after.loss.mean != before.loss.mean

  output = tmp_path / 'export'
  assert (
    main(['export', '--checkpoint', str(wide), '--output', str(output)]) == 0
  )
  config = json.loads((output / 'config.json').read_text())
  widths = _checkpoint(wide).contents['model_widths']
  assert config['model']['widths'] == widths
  num_weights = sum(weight.size for weight in _weights(wide))
  card = (output / 'README.md').read_text()
  assert '| `name` | lenet |' in card
  assert f'| `widths` | {tuple(widths)} |' in card
  assert f'| `parameters` | {num_weights} |' in card
  kept = safetensors.numpy.load_file(output / 'model.safetensors')
  images = halves[0].batch_features()['x']['image'].astype(np.float32) / 255
  loaded = tf.saved_model.load(str(output / 'saved_model'))
  np.testing.assert_allclose(
    loaded.signatures['serving_default'](images=tf.constant(images))['logits'],
    IMAGE_CLASSIFIERS['lenet'].logits(
      [tf.constant(kept[name]) for name in _SHAPE.weight_shapes()], images
    ),
    atol=1e-5,
  )
  for name, weight in zip(_SHAPE.weight_shapes(), _weights(wide), strict=True):
    np.testing.assert_array_equal(kept[name], weight)


@pytest.mark.slow
def test_what_needs_the_model_of_the_clients_refuses_it(
  wide, small_images, tmp_path, capsys
):
  started = dict(algorithm__name='fed_avg', training__start_from=wide)
  own = {k: v for k, v in _SETTINGS.items() if not k.startswith('algorithm')}
  code = small_image_runs.train(small_images, tmp_path / 'x', **own | started)
  error = capsys.readouterr().err
  assert code == 2 and len(error.splitlines()) == 1
  assert "tensor 'conv_1/kernel' must have shape [5, 5, 1, 6] as in" in error
  arguments = ['--checkpoint', str(wide), '--data', str(small_images)]
  assert main(['evaluate', *arguments, '--barrier']) == 2
  error = capsys.readouterr().err
  assert '`--barrier` is not available for' in error
  assert len(error.splitlines()) == 1


@pytest.mark.slow
def test_a_run_killed_in_the_solve_repeats_it(wide, small_images, tmp_path):
  killed = shutil.copytree(wide, tmp_path / 'killed')
  shutil.rmtree(checkpoints.path_of(killed / 'checkpoints', 1))
  (killed / 'uploads' / '.round_00000001.x').mkdir()
  settings = dict(evaluation__barrier_every_num_rounds=1)
  assert _train(small_images, killed, **settings) == 0
  assert_same_run(killed, wide)


@pytest.mark.slow
def test_without_growth_the_model_is_the_clients(wide, small_images, tmp_path):
  narrow, solved = tmp_path / 'narrow', tmp_path / 'solved'
  settings = dict(algorithm__max_growth=1.0, algorithm__keeps_uploads=True)
  assert _train(small_images, narrow, **settings) == 0
  assert 'model_widths' not in _checkpoint(narrow).contents
  shapes = _SHAPE.weight_shapes()
  assert [weight.shape for weight in _weights(narrow)] == list(shapes.values())
  config = run_directory.read_config(narrow)
  training = dataclasses.replace(config.training, start_from=str(narrow))
  config = dataclasses.replace(config, training=training)
  assert start_model.check(config, None).drawn == ()
  # Solved with growth, its uploads give the wide model.
  arguments = ['--uploads', str(narrow), '--workdir', str(solved)]
  growth = '--config.algorithm.max_growth=2.0'
  assert main(['solve', *arguments, growth]) == 0
  for found, wanted in zip(_weights(solved), _weights(wide), strict=True):
    np.testing.assert_array_equal(found, wanted)
  widths = _checkpoint(wide).contents['model_widths']
  assert _checkpoint(solved).contents['model_widths'] == widths


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    (
      dict(training__num_rounds=2),
      "`config.training.num_rounds` must be 1 with algorithm.name 'pfnm', "
      'whose solution may be wider than the model that clients train, found 2',
    ),
    (
      dict(model__preset='resnet18'),
      '`config.model.preset` must be a model without residuals with '
      "algorithm.name 'pfnm', found 'resnet18'",
    ),
    (dict(model__preset='tiny'), "`config.model.preset` must be 'emnist"),
    (
      dict(model__preset='tiny', algorithm__name='fed_fisher'),
      "`config.model.preset` must be 'emnist",
    ),
    (
      dict(algorithm__max_growth=0.5),
      '`config.algorithm.max_growth` must be finite and at least 1, found',
    ),
  ],
)
def test_refused_settings(settings, words, small_images, tmp_path, capsys):
  settings = _SETTINGS | settings
  if settings['algorithm__name'] != 'pfnm':
    settings = {k: v for k, v in settings.items() if 'sigma' not in k}
  assert small_image_runs.train(small_images, tmp_path / 'x', **settings) == 2
  error = capsys.readouterr().err
  assert words in error
  assert len(error.splitlines()) == 1
