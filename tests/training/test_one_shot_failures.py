"""One-shot runs: full disks, broken or empty clients, no rows at the server."""

import subprocess

import disk_calls
import numpy as np
import pytest
import small_image_runs
from one_shot_runs import SETTINGS as SHARED
from one_shot_runs import rows as _rows
from one_shot_runs import uploads as _uploads
from one_shot_runs import weights as _weights_of
from stateful_runs import assert_same_run

from tff_fedfish.cli.main import main
from tff_fedfish.run import checkpoints

_SETTINGS = dict(
  algorithm__num_validation_rows=0,
  client_work__num_local_epochs=1,
  evaluation__num_clients=0,
  **SHARED,
)


def _train(images, workdir, name, **settings):
  """Returns the exit code."""
  settings = _SETTINGS | dict(algorithm__name=name) | settings
  return small_image_runs.train(images, workdir, **settings)


def _row(run):
  return _rows(run)[-1]


def _weights(run, round_num=1):
  path = checkpoints.path_of(run / 'checkpoints', round_num)
  return _weights_of(path)


def _remount(disk, options):
  command = ['mount', '-o', f'remount,{options}', str(disk)]
  subprocess.run(command, check=True)


def test_kept_uploads_are_flushed(small_images, tmp_path, monkeypatch):
  calls = disk_calls.record(monkeypatch, tmp_path)
  kept = dict(algorithm__keeps_uploads=True)
  assert _train(small_images, tmp_path, 'ot_fusion', **kept) == 0
  end = calls.index(
    next(call for call in calls if call[2] == 'uploads/round_00000001')
  )
  before = {path for kind, path, _ in calls[:end] if kind == 'fsync'}
  temporary = calls[end][1]
  names = [p.name for p in tmp_path.glob('uploads/round_00000001/*')]
  assert len(names) == 5
  assert before >= {'.', temporary, *(f'{temporary}/{name}' for name in names)}
  assert calls[end + 1] == ('fsync', 'uploads', None)


@pytest.mark.slow
def test_a_disk_that_fills_up_in_an_upload(
  small_images, small_disk, tmp_path, capsys
):
  # Round 0 takes 177 KB, and so does every upload.
  run = small_disk / 'run'
  assert _train(small_images, run, 'ot_fusion') == 1
  line = capsys.readouterr().err.splitlines()[-1]
  assert line.startswith('fedfish: failed: [Errno 28] No space left on device')
  assert '/uploads/.round_00000001.' in line
  assert not list((run / 'uploads').iterdir())
  _remount(small_disk, 'size=4m')
  assert _train(small_images, run, 'ot_fusion') == 0
  whole = tmp_path / 'whole'
  assert _train(small_images, whole, 'ot_fusion') == 0
  assert_same_run(run, whole)
  assert not list((run / 'uploads').iterdir())


@pytest.mark.slow
def test_a_disk_that_is_read_only(small_images, small_disk, tmp_path, capsys):
  run = small_disk / 'run'
  _remount(small_disk, 'size=4m')
  kept = dict(algorithm__keeps_uploads=True)
  assert _train(small_images, run, 'ot_fusion', **kept) == 0
  _remount(small_disk, 'ro')
  arguments = ['solve', '--uploads', str(run)]
  # Its uploads are read, but nothing is written beside them.
  capsys.readouterr()
  assert main(arguments) == 2
  assert capsys.readouterr().err.splitlines()[-1] == (
    f"fedfish: error: `--workdir` must be writable, but '{run}_ot_fusion' is "
    'not (Read-only file system). Name another directory, or change its '
    'permissions.'
  )
  assert main([*arguments, '--workdir', str(tmp_path / 'solved')]) == 0
  assert _row(tmp_path / 'solved')['one_shot/num_uploads'] == '4'


@pytest.mark.slow
def test_clients_whose_summary_is_not_finite(small_images, tmp_path):
  # One huge step: weights are some 1e19, activations overflow.
  settings = dict(
    client_work__local_batch_size=6, client_work__learning_rate=1e20
  )
  run, other_run = tmp_path / 'run', tmp_path / 'other'
  assert _train(small_images, run, 'fisher_merge', **settings) == 0
  # The weights are finite.
  assert _train(small_images, other_run, 'ot_fusion', **settings) == 0
  assert _row(other_run)['train/num_non_finite_clients'] == '0'
  assert _row(run)['train/num_non_finite_clients'] == '4'
  assert _row(run)['one_shot/num_uploads'] == '0'
  for one, other in zip(_weights(run), _weights(run, 0), strict=True):
    np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_an_empty_client(small_images, tmp_path):
  # Of 5, 6, 6 and 6 images batches of 6 leave the first without any.
  settings = dict(
    client_work__local_batch_size=6,
    data__client_batches='full_only',
    algorithm__keeps_uploads=True,
  )
  run = tmp_path / 'run'
  assert _train(small_images, run, 'ot_fusion', **settings) == 0
  row = _row(run)
  assert row['train/num_empty_clients'] == '1'
  assert row['train/num_non_finite_clients'] == '0'
  assert row['one_shot/num_uploads'] == '3'
  np.testing.assert_allclose(_uploads(run).shares, [1 / 3] * 3)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'settings'),
  [
    ('fed_fisher', dict(algorithm__num_solver_steps=5)),
    ('reg_mean', dict(algorithm__shrinkage=0.9)),
  ],
)
def test_local_steps_in_micro_batches(name, settings, small_images, tmp_path):
  settings = settings | dict(
    client_work__num_local_steps=2,
    client_work__max_sequences_per_client=None,
    algorithm__keeps_uploads=True,
  )
  whole, run = tmp_path / 'whole', tmp_path / 'run'
  assert _train(small_images, whole, name, **settings) == 0
  settings |= dict(client_work__micro_batch_size=2)
  assert _train(small_images, run, name, **settings) == 0
  for one, other in zip(_uploads(run), _uploads(whole), strict=True):
    assert one.client_weight == other.client_weight
    for found, wanted in (
      *zip(one.weights, other.weights, strict=True),
      *((one.summary[n], other.summary[n]) for n in other.summary),
    ):
      np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)
