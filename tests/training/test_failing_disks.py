"""Runs whose disk is full, for a moment or for good, and without a reader."""

import os
import re
import subprocess
import sys
import time

import disk_calls
import pytest
import small_image_runs
import small_runs

from tff_fedfish.run import checkpoint_writer, checkpoints, tables

_SETTINGS = dict(
  client_work__num_local_epochs=1,
  evaluation__num_clients=0,
  model__preset='linear',
  training__num_rounds=4,
)


@pytest.mark.parametrize(
  ('round_num', 'every', 'saved'),
  [
    # Round 0 is written again before round 1.
    (0, 0, [0, 4]),
    # The next one may be reached before the failure is noticed.
    (2, 1, [0, 1, 3, 4]),
    (4, 0, [0, 4]),
  ],
  ids=['first', 'middle', 'last'],
)
def test_full_for_a_moment(
  round_num, every, saved, small_images, tmp_path, monkeypatch, capfd
):
  pattern = f'*/checkpoints/.round_{round_num:08d}.*/state.safetensors'
  failed = disk_calls.fill(monkeypatch, pattern, for_good=False)
  settings = _SETTINGS | dict(checkpoints__every_num_rounds=every)
  assert small_image_runs.train(small_images, tmp_path, **settings) == 0
  assert len(failed) == 1
  found = checkpoints.list_rounds(tmp_path / 'checkpoints')
  assert {*saved} <= {*found}
  assert 'No space left' not in capfd.readouterr().err


@pytest.mark.parametrize(
  ('first', 'saved', 'named'),
  [
    ('checkpoints/.round_00000000.*/state.safetensors', [], '/checkpoints/'),
    # The row of round 3 fails, too, if it comes before the next attempt.
    ('checkpoints/.round_00000002.*/manifest.json', [0, 1], '/checkpoints/'),
    # Before round 0 counts.
    ('timings.csv', [], 'timings.csv'),
  ],
)
def test_full_for_good(
  first, saved, named, small_images, tmp_path, monkeypatch, capfd
):
  disk_calls.fill(monkeypatch, f'*/{first}', for_good=True)
  settings = _SETTINGS | dict(checkpoints__every_num_rounds=1)
  assert small_image_runs.train(small_images, tmp_path, **settings) == 1
  assert checkpoints.list_rounds(tmp_path / 'checkpoints') == saved
  (line,) = re.findall('.*No space left.*', capfd.readouterr().err)
  assert line.startswith('fedfish: failed: ') and named in line


def test_round_1_waits_for_the_first_checkpoint(
  small_images, tmp_path, monkeypatch
):
  save, logged = checkpoint_writer.save_checkpoint, []

  def save_slowly(directory, round_num, *arguments):
    if not round_num:
      time.sleep(2)
    save(directory, round_num, *arguments)
    logged.append(tables.logged_rounds(tmp_path / 'metrics.csv'))

  monkeypatch.setattr(checkpoint_writer, 'save_checkpoint', save_slowly)
  settings = _SETTINGS | dict(checkpoints__every_num_rounds=0)
  assert small_image_runs.train(small_images, tmp_path, **settings) == 0
  assert logged == [{0}, {0, 1, 2, 3, 4}]


def test_what_a_run_starts_with_is_flushed(small_inputs, tmp_path, monkeypatch):
  calls = disk_calls.record(monkeypatch, tmp_path)
  run = tmp_path / 'runs' / 'run'
  assert small_runs.train(small_inputs, run, training__num_rounds=1) == 0
  flushed = {path for kind, path, _ in calls if kind == 'fsync'}
  assert flushed >= {'.', 'runs', 'runs/run'}
  (vocabulary,) = (
    source for _, source, name in calls if name == 'runs/run/vocabulary'
  )
  assert flushed >= {vocabulary, f'{vocabulary}/vocab.txt'}


def test_the_reader_of_its_output_leaves(small_inputs, tmp_path):
  settings = dict(training__num_rounds=12, checkpoints__every_num_rounds=0)
  process = small_runs.start(small_inputs, tmp_path, 2, **settings)
  process.stderr.close()
  assert process.wait(300) == 0
  (start,) = small_runs.starts(tmp_path)
  assert f'train --config {small_runs.CONFIG} --workdir ' in start['command']
  assert tables.read_metrics(tmp_path / 'metrics.csv')[-1]['round'] == 12
  assert checkpoints.list_rounds(tmp_path / 'checkpoints') == [0, 12]


def test_a_finished_run_whose_terminal_is_gone(small_run):
  read, write = os.pipe()
  os.close(read)
  command = [sys.executable, '-m', 'tff_fedfish', 'train', '--workdir']
  done = subprocess.run([*command, str(small_run)], stdout=write, stderr=write)
  os.close(write)
  assert done.returncode == 0
