"""`fedfish train` with TCT: its phases, what is kept, and what is refused."""

import csv
import json
import re
import shutil

import gram_reference
import numpy as np
import pytest
import small_image_runs
from stateful_runs import assert_same_run

from tff_fedfish import files
from tff_fedfish.cli.main import main
from tff_fedfish.evaluation.results import read_evaluation
from tff_fedfish.run import (
  checkpoints,
  model_state,
  run_directory,
  store,
  tensor_files,
)
from tff_fedfish.run.features import FeatureClient

# Four writers with 5, 6, 6 and 6 images; rounds 1 and 2 are FedAvg, round 3
# computes features, rounds 4 to 6 are convex.
_SETTINGS = dict(
  algorithm__name='tct',
  algorithm__num_bootstrap_rounds=2,
  algorithm__num_convex_steps=50,
  algorithm__convex_learning_rate=1e-3,
  cohorts__cohort_size=None,
  evaluation__num_clients=0,
  model__preset='linear',
  server__optimizer='sgd',
  server__learning_rate=1.0,
  training__num_rounds=6,
)
_NUM_FEATURES = 785


def _train(images, workdir, **settings):
  return small_image_runs.train(images, workdir, **_SETTINGS | settings)


def _rows(run):
  with open(run / 'metrics.csv', newline='') as file:
    return list(csv.DictReader(file))


def _weights(run, round_num=None):
  path = run if round_num is None else _checkpoint(run, round_num)
  path = checkpoints.resolve_checkpoint(path)
  found = checkpoints.load_checkpoint(path, None)
  config = run_directory.read_config(run).in_round(found.round_num)
  return model_state.model_weights(config, found)


def _checkpoint(run, round_num):
  return checkpoints.path_of(run / 'checkpoints', round_num)


def _features(run):
  """Returns (features, labels) of each client."""
  found = store.RoundStore(run / store.FEATURES)
  return [
    tuple(
      tensor_files.read(found.path(3) / entry.file)[name]
      for name in ('features', 'labels')
    )
    for entry in found.manifest(3).files.values()
  ]


def _tree(run, name):
  """Returns contents and times of all files in a directory of a run."""
  return {
    path.relative_to(run): (path.read_bytes(), path.stat().st_mtime_ns)
    for path in (run / name).rglob('*')
    if path.is_file()
  }


@pytest.fixture(scope='module')
def whole(small_images, tmp_path_factory):
  run = tmp_path_factory.mktemp('tct') / 'whole'
  assert _train(small_images, run) == 0
  return run


@pytest.mark.slow
def test_metrics_name_the_phases(whole):
  rows = _rows(whole)
  assert [row['tct/phase'] for row in rows] == ['', *'112333']
  size = sum(p.stat().st_size for p in whole.glob('features/*/*.safetensors'))
  assert [row['tct/feature_bytes'] for row in rows[2:5]] == ['', str(size), '']
  # 23 rows of 785 float16 and an int32.
  assert size == pytest.approx(23 * (785 * 2 + 4), rel=0.05)
  assert rows[4]['tct/correction_imbalance'] == '0.0'
  for row in rows[5:]:
    assert 0 < float(row['tct/correction_imbalance']) < 1e-5
  accuracies = [float(row['tct/train_accuracy']) for row in rows[4:]]
  assert accuracies[0] < accuracies[-1]
  # p = 785, d = 7,850; C (p + 1) = 7,860.
  units = [float(row['communication/uplink_units']) for row in rows[2:5]]
  assert units == pytest.approx(
    [2, 2 + 1571 / 7850, 2 + 1571 / 7850 + 7860 / 7850]
  )


@pytest.mark.slow
def test_features_are_those_of_the_linear_model(whole):
  # The first logit of a linear model is w^T x + b: its gradient is (x, 1).
  for features, labels in _features(whole):
    assert features.dtype == np.float16
    assert features.shape == (len(labels), _NUM_FEATURES)
    np.testing.assert_array_equal(features[:, -1], 1)
  _, (*_, mean, std) = (
    _weights(whole, 4).trainable,
    _weights(whole, 4).non_trainable,
  )
  z = np.concatenate([f for f, _ in _features(whole)]).astype(np.float64)
  np.testing.assert_allclose(mean, z.mean(axis=0), rtol=1e-6, atol=1e-7)
  wanted = np.where(z.std(axis=0) > 0, z.std(axis=0), 1)
  np.testing.assert_allclose(std, wanted, rtol=1e-5)
  num_dead = int((z.std(axis=0) == 0).sum())
  assert _rows(whole)[3]['tct/dead_coordinates'] == str(num_dead)


@pytest.mark.slow
def test_convex_rounds_are_those_of_algorithm_2(whole):
  """Replays D.4 in NumPy, from the features on."""
  clients = _features(whole)
  *_, mean, std = _weights(whole, 4).non_trainable
  server = np.zeros((_NUM_FEATURES + 1, 10))
  corrections = [np.zeros_like(server) for _ in clients]
  last = [server] * len(clients)
  shares = [len(labels) / 23 for _, labels in clients]
  for round_num in (4, 5, 6):
    for i, (features, labels) in enumerate(clients):
      corrections[i] = corrections[i] + (server - last[i]) / (50 * 1e-3)
      last[i] = gram_reference.local_steps(
        features,
        mean,
        std,
        gram_reference.targets_of(labels, 10),
        server,
        corrections[i],
        num_steps=50,
        step_size=1e-3,
      )
    server = sum(q * v for q, v in zip(shares, last, strict=True))
    kernel, bias = _weights(whole, round_num).trainable
    found = np.concatenate([kernel, bias[np.newaxis]])
    np.testing.assert_allclose(found, server, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_steps_give_what_the_gram_matrix_gives(small_images, whole, tmp_path):
  run = tmp_path / 'steps'
  assert _train(small_images, run, algorithm__max_gram_rows=0) == 0
  assert not [*(run / 'feature_bases').rglob('*.safetensors')]
  for found, wanted in zip(
    _weights(run).trainable, _weights(whole).trainable, strict=True
  ):
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_resumed_in_every_phase(small_images, whole, tmp_path):
  run = tmp_path / 'run'
  for num_rounds in (1, 2, 3, 4):
    before = _tree(run, 'features') | _tree(run, 'feature_bases')
    assert _train(small_images, run, training__num_rounds=num_rounds) == 0
    after = _tree(run, 'features') | _tree(run, 'feature_bases')
    # Not written again.
    assert before.items() <= after.items()
  assert _train(small_images, run) == 0
  assert_same_run(run, whole)
  wanted = _tree(whole, 'features') | _tree(whole, 'feature_bases')
  assert {k: v[0] for k, v in after.items()} == {
    k: v[0] for k, v in wanted.items()
  }


@pytest.mark.slow
def test_without_bootstrap(small_images, tmp_path):
  run = tmp_path / 'run'
  settings = dict(algorithm__num_bootstrap_rounds=0, training__num_rounds=2)
  assert _train(small_images, run, **settings) == 0
  assert [row['tct/phase'] for row in _rows(run)] == ['', '2', '3']


@pytest.mark.slow
@pytest.mark.parametrize('round_num', [3, 6])
def test_evaluated(round_num, small_images, whole, tmp_path):
  arguments = ['--checkpoint', str(_checkpoint(whole, round_num))]
  arguments += ['--data', str(small_images), '--output', str(tmp_path / 'e')]
  assert main(['evaluate', *arguments, '--client_split', 'held_out']) == 0
  assert read_evaluation(tmp_path / 'e').clients['loss_after'].mean() > 0


@pytest.mark.slow
def test_a_convex_model_is_not_exported(whole, tmp_path, capsys):
  arguments = ['--checkpoint', str(whole), '--output', str(tmp_path / 'model')]
  assert main(['export', *arguments]) == 2
  error = capsys.readouterr().err.splitlines()[-1]
  assert '`--checkpoint` must hold a network, but' in error
  assert error.endswith('Name a checkpoint of an earlier phase.')


def _resume(images, whole, tmp_path, damage, **settings):
  """Damages a copy of the run after round 3, and goes on with it."""
  run = tmp_path / 'run'
  shutil.copytree(whole, run)
  for round_num in (4, 5, 6):
    shutil.rmtree(_checkpoint(run, round_num))
  damage(run / 'features' / 'round_00000003')
  return _train(images, run, **settings)


def _flip_last_byte(path):
  file = sorted(path.glob('*.safetensors'))[0]
  file.chmod(0o644)
  data = bytearray(file.read_bytes())
  data[-1] ^= 1
  file.write_bytes(data)


def _give_others(path):
  manifest = path / store.MANIFEST
  values = json.loads(manifest.read_text('utf-8'))
  del values['sha256']
  values['files'].popitem()
  manifest.write_text(json.dumps(files.with_hash(values)), 'utf-8')


@pytest.mark.slow
@pytest.mark.parametrize(
  ('damage', 'words'),
  [
    (
      shutil.rmtree,
      "manifest.json' is damaged: it cannot be read (No such file",
    ),
    (_flip_last_byte, "safetensors' is damaged: it must have SHA-256 "),
    (
      _give_others,
      'must hold the features of the checkpoint of ',
    ),
  ],
)
def test_features_that_are_not_as_written(
  damage, words, small_images, whole, tmp_path, capsys
):
  assert _resume(small_images, whole, tmp_path, damage) == 2
  *_, line = capsys.readouterr().err.strip().splitlines()
  assert line.startswith('fedfish: error: ') and words in line
  assert tensor_files.ADVICE in line


@pytest.mark.slow
def test_missing_bases_are_computed_again(small_images, whole, tmp_path):
  def damage(path):
    bases = path.parents[1] / 'feature_bases'
    shutil.rmtree(bases)
    # As a process leaves it that was killed while it wrote them.
    (bases / '.round_00000003.x').mkdir(parents=True)

  assert _resume(small_images, whole, tmp_path, damage) == 0
  assert_same_run(tmp_path / 'run', whole)
  bases = tmp_path / 'run' / 'feature_bases'
  assert [path.name for path in bases.iterdir()] == ['round_00000003']


@pytest.mark.slow
def test_no_room_for_features(
  small_images, whole, tmp_path, capsys, monkeypatch
):
  run = shutil.copytree(whole, tmp_path / 'run')
  for round_num in (3, 4, 5, 6):
    shutil.rmtree(_checkpoint(run, round_num))
  usage = shutil.disk_usage(tmp_path)
  with monkeypatch.context() as patch:
    # 36,202 bytes of features, and 8 (5 * 7 + 3 * 6 * 8) of bases.
    usage = usage._replace(free=37_633)
    patch.setattr(shutil, 'disk_usage', lambda path: usage)
    assert _train(small_images, run) == 1
  error = capsys.readouterr().err
  assert 'Round 3 takes up to 36.8 KiB of features, but 36.8 KiB are ' in error
  assert 'the same command continues after round 2' in error
  assert not list((run / 'features').glob('*'))
  assert checkpoints.list_rounds(run / 'checkpoints') == [0, 1, 2]


@pytest.mark.slow
def test_dry_run_says_what_phases_take(small_images, whole, capsys):
  options = [*small_image_runs.overrides(small_images, **_SETTINGS)]
  config = ['--config', small_image_runs.CONFIG]
  assert main(['train', *config, *options, '--dry_run']) == 0
  text = ' '.join(capsys.readouterr().out.split())
  assert (
    "Phase 'features', rounds 3 to 3: 0.2001 models up and 1.2 down a round "
    'and client.'
  ) in text
  assert re.search(r'Features on disk: [\d.]+ KiB\.', text)


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    ({'cohorts__cohort_size': 2}, '`config.cohorts.cohort_size` must be None'),
    ({'server__learning_rate': 0.5}, '`config.server.learning_rate` must be'),
    (
      {
        'client_work__learning_rate_schedule': 'cosine',
        'client_work__schedule_rounds': 5,
      },
      '`config.client_work.learning_rate_schedule` must be',
    ),
    (
      {
        'client_work__keeps_optimizer_state': True,
        'client_work__momentum': 0.9,
      },
      '`config.client_work.keeps_optimizer_state` must be False',
    ),
    (
      {'evaluation__barrier_every_num_rounds': 2},
      '`config.evaluation.barrier_every_num_rounds` must be 0',
    ),
  ],
)
def test_refused_settings(settings, words, small_images, tmp_path, capsys):
  assert _train(small_images, tmp_path / 'run', **settings) == 2
  assert words in capsys.readouterr().err


@pytest.mark.slow
def test_no_start_from_a_convex_phase(small_images, whole, tmp_path, capsys):
  settings = dict(training__start_from=whole)
  assert _train(small_images, tmp_path / 'run', **settings) == 2
  assert "is of phase 'convex' of 'tct'" in capsys.readouterr().err
  settings = dict(training__start_from=_checkpoint(whole, 3))
  settings |= dict(training__num_rounds=1)
  assert _train(small_images, tmp_path / 'run', **settings) == 0


@pytest.mark.slow
def test_verified(whole, tmp_path, capsys):
  assert main(['verify', str(whole)]) == 0
  run = tmp_path / 'run'
  shutil.copytree(whole, run)
  _flip_last_byte(run / 'features' / 'round_00000003')
  assert main(['verify', str(run)]) == 2
  assert 'features/round_00000003/0000.safetensors' in capsys.readouterr().err


def test_a_client_that_fails_ends_the_run(
  small_images, whole, tmp_path, capsys, monkeypatch
):
  load, seen = FeatureClient.load, []

  def load_or_fail(self):
    seen.append(self.client_id)
    if self.client_id == seen[0]:
      raise OSError('gone')
    return load(self)

  monkeypatch.setattr(FeatureClient, 'load', load_or_fail)
  run = shutil.copytree(whole, tmp_path / 'run')
  assert _train(small_images, run, training__num_rounds=7) == 1
  assert capsys.readouterr().err.splitlines()[-1] == (
    "fedfish: failed: Round 7: algorithm.name 'tct' requires every "
    f'client in every round, but client {seen[0]!r} failed: OSError: '
    'gone. The rounds before it are saved.'
  )
  assert checkpoints.list_rounds(run / 'checkpoints')[-1] == 6
