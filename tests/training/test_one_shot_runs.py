"""`fedfish train` with one-shot methods, and `fedfish solve`."""

import dataclasses
import shutil

import numpy as np
import pytest
import small_image_runs
import small_runs
from one_shot_runs import SETTINGS as SHARED
from one_shot_runs import rows as _rows
from one_shot_runs import uploads as _uploads
from one_shot_runs import weights as _weights
from stateful_runs import assert_same_run

from tff_fedfish.cli.main import main
from tff_fedfish.methods.one_shot.uploads import SolveContext
from tff_fedfish.run import (
  checkpoints,
  corpus_identity,
  run_directory,
  tensor_files,
)

_SETTINGS = dict(
  algorithm__name='fed_fisher',
  algorithm__num_solver_steps=10,
  algorithm__solver_check_every=5,
  algorithm__num_validation_rows=20,
  evaluation__num_clients=0,
  **SHARED,
)


def _train(images, workdir, **settings):
  return small_image_runs.train(images, workdir, **_SETTINGS | settings)


@pytest.fixture(scope='module')
def kept(small_images, tmp_path_factory):
  """A K-FAC run of a round whose uploads were kept."""
  run = tmp_path_factory.mktemp('one_shot') / 'kept'
  assert _train(small_images, run, algorithm__keeps_uploads=True) == 0
  return run


def _solve(kept, workdir, *overrides):
  arguments = ['solve', '--uploads', str(kept), '--workdir', str(workdir)]
  return main([*arguments, *(f'--config.{text}' for text in overrides)])


@pytest.mark.slow
def test_the_checkpoint_holds_the_solution_over_the_uploads(kept, tmp_path):
  uploads, config = _uploads(kept), run_directory.read_config(kept)
  assert len(uploads) == 4
  # Images of the writers, at most 6 each: 5, 6, 6, 6.
  np.testing.assert_allclose(uploads.shares, [5 / 23, 6 / 23, 6 / 23, 6 / 23])
  context = SolveContext(config.model_shape())
  last = config.method.solve(uploads, uploads.mean(), context)
  row = _rows(kept)[-1]
  assert float(row['one_shot/solve_residual']) == last.residual
  # The run keeps the weights that score best; without rows to score, the last.
  unscored = tmp_path / 'unscored'
  assert _solve(kept, unscored, 'algorithm.num_validation_rows=0') == 0
  assert _rows(unscored)[-1]['one_shot/best_step'] == '10'
  for found, wanted in zip(_weights(unscored), last.weights, strict=True):
    np.testing.assert_array_equal(found, wanted)
  assert row['one_shot/num_uploads'] == '4'
  assert float(row['one_shot/validation_accuracy']) >= float(
    row['one_shot/average_accuracy']
  )
  # (44,190 + 131,965) / 44,190 models up, one down.
  assert float(row['communication/uplink_units']) == pytest.approx(3.98631)
  assert float(row['communication/total_units']) == pytest.approx(4.98631)


@pytest.mark.slow
def test_few_shot_rounds_resume(small_images, tmp_path):
  settings = dict(training__num_rounds=2, algorithm__keeps_uploads=True)
  whole, run = tmp_path / 'whole', tmp_path / 'run'
  assert _train(small_images, whole, **settings) == 0
  # As after a kill in the last round's solve.
  shutil.copytree(whole, run)
  shutil.rmtree(checkpoints.path_of(run / 'checkpoints', 2))
  (run / 'uploads' / '.round_00000002.x').mkdir()
  assert _train(small_images, run, **settings) == 0
  assert_same_run(run, whole)
  assert not (run / 'uploads' / '.round_00000002.x').exists()
  rounds = checkpoints.list_rounds(whole / 'uploads')
  assert rounds == checkpoints.list_rounds(run / 'uploads') == [1, 2]


@pytest.mark.slow
def test_compressed_uploads(small_images, tmp_path):
  run = tmp_path / 'run'
  assert _train(small_images, run, algorithm__compression='paper') == 0
  # 16 + 16 bits a weight, and a scale for each of 5 tensors of both.
  found = float(_rows(run)[-1]['communication/uplink_units'])
  assert found == pytest.approx(1.0340, abs=5e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'curvature'),
  [
    ('ot_fusion', 'kfac'),
    pytest.param('fisher_merge', 'diagonal', marks=pytest.mark.slow),
  ],
)
def test_solving_kept_uploads_is_training_again(
  name, curvature, small_images, kept, tmp_path
):
  given = kept
  if curvature == 'diagonal':
    given = tmp_path / 'diagonal'
    settings = dict(algorithm__curvature='diagonal')
    settings |= dict(algorithm__keeps_uploads=True)
    assert _train(small_images, given, **settings) == 0
  solved, trained = tmp_path / 'solved', tmp_path / 'trained'
  assert _solve(given, solved, f'algorithm.name={name}') == 0
  settings = {k: v for k, v in _SETTINGS.items() if 'solver' not in k}
  settings |= {'algorithm__name': name}
  assert small_image_runs.train(small_images, trained, **settings) == 0
  for found, wanted in zip(_weights(solved), _weights(trained), strict=True):
    np.testing.assert_allclose(found, wanted, atol=1e-6)
  columns = [n for n in _rows(trained)[-1] if n.startswith('train/')]
  for column in columns:
    assert _rows(solved)[-1][column] == _rows(trained)[-1][column]


@pytest.mark.slow
def test_solving_again_gives_the_same_bits(kept, tmp_path):
  assert _solve(kept / 'uploads', tmp_path / 'again') == 0
  (start,) = small_runs.starts(tmp_path / 'again')
  uploads = kept / 'uploads' / 'round_00000001'
  assert start['reads'] == {'uploads': small_runs.round_read(uploads)}
  assert _rows(tmp_path / 'again') == _rows(kept)
  for found, wanted in zip(
    _weights(tmp_path / 'again'),
    _weights(kept),
    strict=True,
  ):
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.slow
def test_a_run_is_not_solved_into_itself(kept, capsys):
  assert _solve(kept, kept) == 2
  assert 'must be another directory than `--uploads`' in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
  ('overrides', 'words'),
  [
    (
      ['algorithm.name=reg_mean', 'algorithm.num_validation_rows=0'],
      '`config.algorithm.shrinkage` must be given, such as 0.9, with ',
    ),
    (
      ['client_work.learning_rate=1'],
      '`--config.client_work.learning_rate` must be as in',
    ),
    (
      ['algorithm.client_weighting=uniform'],
      '`--config.algorithm.client_weighting` must be that of',
    ),
    (['algorithm.name=fed_avg'], 'must be a one-shot method, found'),
    (
      ['algorithm.name=fisher_merge'],
      "`--uploads` must hold the 'diagonal' summaries that 'fisher_merge' "
      "needs, found 'kfac'. Train a run with ",
    ),
    (
      ['algorithm.curvature=diagonal'],
      "`--uploads` must hold the 'diagonal' summaries that 'fed_fisher' needs,",
    ),
    (
      ['algorithm.compression=paper'],
      '`--config.algorithm.compression` must be that of',
    ),
    (
      ['algorithm.curvature=kfac', 'algorithm.solver=closed_form'],
      "`config.algorithm.curvature` must be 'diagonal' with solver",
    ),
  ],
)
def test_refused_solves(overrides, words, kept, tmp_path, capsys):
  assert _solve(kept, tmp_path / 'run', *overrides) == 2
  error = capsys.readouterr().err
  assert words in error
  assert len(error.splitlines()) == 1
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_a_run_without_uploads(kept, tmp_path, capsys):
  run = shutil.copytree(kept, tmp_path / 'kept')
  shutil.rmtree(run / 'uploads')
  for given in (run, tmp_path / 'nothing'):
    assert _solve(given, tmp_path / 'solved') == 2
    error = capsys.readouterr().err
    assert f"'{given}' must be a run with the uploads of its first" in error


@pytest.mark.slow
def test_clients_that_are_not_finite_upload_nothing(small_images, tmp_path):
  run = tmp_path / 'run'
  settings = dict(client_work__learning_rate=1e30)
  assert _train(small_images, run, **settings) == 0
  row = _rows(run)[-1]
  assert row['train/num_non_finite_clients'] == '4'
  assert row['one_shot/num_uploads'] == '0'
  assert row['one_shot/best_step'] == ''
  first = _weights(run / 'checkpoints' / 'round_00000000')
  for found, wanted in zip(_weights(run), first, strict=True):
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.slow
def test_a_solution_that_is_not_finite(kept, tmp_path, capsys):
  run = tmp_path / 'run'
  overrides = (
    'solver_learning_rate=1e30',
    'tries_average=False',
    'num_validation_rows=0',
  )
  assert _solve(kept, run, *(f'algorithm.{text}' for text in overrides)) == 0
  assert 'non-finite, the solution is no finite update; the model stays' in (
    capsys.readouterr().err
  )
  assert _rows(run)[-1]['train/update_is_non_finite'] == '1'
  first = _weights(run / 'checkpoints' / 'round_00000000')
  for found, wanted in zip(_weights(run), first, strict=True):
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['fisher_merge', 'ot_fusion'])
def test_text(name, small_inputs, tmp_path):
  run = tmp_path / 'run'
  settings = {
    'server__optimizer': 'sgd',
    'server__learning_rate': 1.0,
    'algorithm__name': name,
    'algorithm__num_validation_rows': 10,
    'training__num_rounds': 1,
    'client_work__num_local_epochs': 1,
  }
  assert small_runs.train(small_inputs, run, **settings) == 0
  row = _rows(run)[-1]
  assert np.isfinite(float(row['held_out/loss']))
  assert int(row['one_shot/num_uploads']) > 1


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    (
      {'algorithm__name': 'dense'},
      "`config.algorithm.name` 'dense' requires a corpus of images, found text",
    ),
    (
      {},
      "`config.algorithm.curvature` must be 'diagonal' with a corpus of text, "
      "found 'kfac'",
    ),
    (
      {'server__optimizer': 'adam'},
      "`config.server.optimizer` must be 'sgd' with algorithm.name "
      "'fed_fisher', found 'adam'",
    ),
    (
      {'client_work__max_delta_norm': 1.0},
      '`config.client_work.max_delta_norm` must be None with algorithm.name '
      "'fed_fisher', found 1.0",
    ),
  ],
)
def test_refused_settings(settings, words, small_inputs, tmp_path, capsys):
  plain = {'algorithm__name': 'fed_fisher', 'server__optimizer': 'sgd'}
  plain |= {'server__learning_rate': 1.0, 'cohorts__cohort_size': 8}
  code = small_runs.train(small_inputs, tmp_path / 'x', **plain | settings)
  assert code == 2
  assert words in capsys.readouterr().err


@pytest.mark.slow
class TestKeptUploadsThatCannotBeSolved:
  """Refused in one line, before anything is written."""

  @pytest.fixture
  def run(self, kept, tmp_path):
    return shutil.copytree(kept, tmp_path / 'kept')

  def _refusal(self, run, tmp_path, capsys, *overrides):
    solved = tmp_path / 'solved'
    assert _solve(run, solved, *overrides) == 2
    *notes, line = capsys.readouterr().err.splitlines()
    assert not any('error' in note for note in notes)
    assert not solved.exists()
    return line

  def test_a_flipped_bit(self, run, tmp_path, capsys):
    path = run / 'uploads' / 'round_00000001' / '0001.safetensors'
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    line = self._refusal(run, tmp_path, capsys)
    assert line.startswith(
      f"fedfish: error: '{path}' is damaged: it must have SHA-256 "
    )
    assert line.endswith(tensor_files.ADVICE)

  def test_uploads_of_another_model(self, run, tmp_path, capsys):
    override = 'model.preset=fed_net_cnn'
    line = self._refusal(run, tmp_path, capsys, override)
    assert '`--config.model.preset` must be as in' in line
    path = run / 'config.json'
    path.write_text(path.read_text().replace('"lenet"', '"fed_net_cnn"'))
    line = self._refusal(run, tmp_path, capsys)
    assert 'is of another model or method: tensor ' in line

  def test_a_first_round_that_is_not_finished(self, run, tmp_path, capsys):
    path = run / 'metrics.csv'
    whole = path.read_text()
    header, start, _ = whole.splitlines(keepends=True)
    wanted = f"'{run}' must have finished its first round, but metrics.csv has"
    # As while the other run solves, or writes the row.
    for text in (header + start, whole[:-1]):
      path.write_text(text)
      assert wanted in self._refusal(run, tmp_path, capsys)

  def test_another_corpus(self, run, tmp_path, capsys):
    identity = corpus_identity.read_identity(run)
    identity = dataclasses.replace(identity, fingerprint='0' * 64)
    corpus_identity.write_identity(run, identity)
    line = self._refusal(run, tmp_path, capsys)
    assert f"must hold the corpus that '{run}' trained on, but " in line
