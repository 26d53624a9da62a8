"""People's own images, from the folder to evaluation, report and export."""

import csv
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import small_image_folders
import small_image_runs
from PIL import Image
from stateful_runs import assert_same_run

from tff_fedfish.cli.main import main
from tff_fedfish.config import load as config_loading
from tff_fedfish.data.client_ids import text_to_client_id
from tff_fedfish.fields import ConfigError
from tff_fedfish.run import run_directory
from tff_fedfish.sweeping.expand import expand_arms
from tff_fedfish.sweeping.sweep_file import read_sweep_file

_HOSTILE = ('<b>&"', '=1+1', 'a\nb', '\u202eevil', '\udc80\udcff', 'plain')
_SETTINGS = dict(
  algorithm__name='fed_avg',
  model__preset='linear',
  data__corpus='image_folder',
  client_splits__held_out_fraction=0.5,
  cohorts__cohort_size=2,
  training__num_rounds=2,
  evaluation__num_clients=1,
)


def _overrides(folder, **settings):
  return small_image_runs.overrides(folder, **_SETTINGS | settings)


def _config(folder, **settings):
  return config_loading.load_config(
    small_image_runs.CONFIG, _overrides(folder, **settings)
  )


def _train(folder, workdir, *options, **settings):
  arguments = ['train', '--config', small_image_runs.CONFIG, *options]
  return main(
    [*arguments, '--workdir', str(workdir), *_overrides(folder, **settings)]
  )


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Six clients whose names are hostile, two classes of 16 x 16 pixels."""
  directory = tmp_path_factory.mktemp('folder') / 'own'
  small_image_folders.write_folder(directory, clients=_HOSTILE)
  (directory / 'plain' / 'cat' / 'notes.txt').write_text('x')
  return directory


@pytest.fixture(scope='module')
def run(folder, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('runs') / 'finished'
  assert _train(folder, workdir) == 0
  return workdir


@pytest.fixture
def interrupted(run, tmp_path):
  """A copy of the run, as if it had been killed in round 2."""
  copy = shutil.copytree(run, tmp_path / 'interrupted')
  shutil.rmtree(copy / 'checkpoints' / 'round_00000002')
  return copy


@pytest.fixture
def other(tmp_path):
  return small_image_folders.write_folder(tmp_path / 'other')


def _evaluate(run, data, output):
  return main(
    ['evaluate', '--checkpoint', str(run), '--data', str(data)]
    + ['--output', str(output), '--fractions', '0,0.5']
  )


def _one_line(capsys):
  """Returns the error, which has to be the only line."""
  error = capsys.readouterr().err
  assert error.count('\n') == 1
  assert error.startswith('fedfish: error: ')
  return error


@pytest.mark.slow
def test_config_json_says_what_was_read(run):
  facts = json.loads((run / 'config.json').read_text())['resolved']
  assert facts['image_height'] == facts['image_width'] == 16
  assert (facts['image_channels'], facts['classes']) == (1, 'cat/dog')
  shape = run_directory.read_config(run).model_shape()
  assert (shape.image_shape, shape.num_classes) == ((16, 16, 1), 2)


@pytest.mark.slow
def test_evaluation_of_the_held_out_clients(run, folder, tmp_path, capsys):
  assert _evaluate(run, folder, tmp_path / 'e') == 0
  printed = capsys.readouterr()
  assert (
    f"'{folder}': skipped entries without an image of a class: 1 (such as "
    "'plain/cat/notes.txt')."
  ) in printed.err
  summary = json.loads((tmp_path / 'e' / 'summary.json').read_text())
  assert summary['kind'] == 'held_out'
  with open(tmp_path / 'e' / 'per_client.csv', newline='') as file:
    ids = {text_to_client_id(row['client_id']) for row in csv.DictReader(file)}
  assert 1 <= len(ids) < 6
  assert ids < {os.fsencode(name) for name in _HOSTILE}


@pytest.mark.slow
def test_all_hostile_clients_are_evaluated(run, folder, tmp_path):
  # As a transfer, all six take part.
  copy = shutil.copytree(folder, tmp_path / 'copy')
  small_image_folders.write_image(copy / 'plain' / 'dog' / '9.png')
  assert _evaluate(run, copy, tmp_path / 'e') == 0
  summary = json.loads((tmp_path / 'e' / 'summary.json').read_text())
  assert (summary['kind'], summary['num_clients']) == ('transfer', 6)
  with open(tmp_path / 'e' / 'per_client.csv', newline='') as file:
    ids = {text_to_client_id(row['client_id']) for row in csv.DictReader(file)}
  assert ids == {os.fsencode(name) for name in _HOSTILE}
  # The report reads them.
  shutil.copytree(run, tmp_path / 'run')
  evaluations = tmp_path / 'run' / 'evaluations'
  shutil.copytree(tmp_path / 'e', evaluations / 'copy')
  page = tmp_path / 'page'
  arguments = ['--runs', str(tmp_path / 'run'), '--output', str(page)]
  assert main(['report', *arguments]) == 0
  assert '<b>&"' not in (page / 'index.html').read_text()


@pytest.mark.slow
def test_continued_run_is_the_uninterrupted_one(run, interrupted, folder):
  assert _train(folder, interrupted) == 0
  assert_same_run(interrupted, run)
  name = 'config.json'
  assert (run / name).read_bytes() == (interrupted / name).read_bytes()


@pytest.mark.slow
def test_changed_images_do_not_continue(interrupted, folder, tmp_path, capsys):
  copy = shutil.copytree(folder, tmp_path / 'copy')
  path = copy / 'plain' / 'dog' / '0.png'
  pixels = np.array(Image.open(path))
  pixels[0, 0] ^= 1
  small_image_folders.write_image(path, pixels=pixels)
  assert _train(copy, interrupted) == 2
  assert 'was trained on another corpus than' in capsys.readouterr().err


@pytest.mark.slow
def test_export_needs_no_folder(run, folder, tmp_path):
  model = tmp_path / 'model'
  arguments = ['--checkpoint', str(run), '--output', str(model)]
  # Out of the way, as where it has been taken off the disk.
  away = folder.rename(folder.with_name('away'))
  try:
    assert main(['export', *arguments]) == 0
  finally:
    away.rename(folder)
  config = json.loads((model / 'config.json').read_text())
  assert config['model']['image_shape'] == [16, 16, 1]
  assert config['run']['resolved']['classes'] == 'cat/dog'
  assert '| `images` | image_folder |' in (model / 'README.md').read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    (
      dict(classes=('cat', 'emu')),
      'must have the 2 classes of the model (`resolved.classes` of its '
      "config.json), but it lacks 'dog'. Name a corpus with the same class "
      'directories.\n',
    ),
    (dict(classes=('cat', 'ape', 'dog')), "but it also has 'ape'."),
    (
      dict(side=20),
      "Corpus 'image_folder' must have images of 16 x 16 x 1 in 2 classes, but "
      'in ',
    ),
  ],
)
def test_no_transfer_to_images_of_another_kind(
  run, tmp_path, capsys, changes, words
):
  other = small_image_folders.write_folder(tmp_path / 'other', **changes)
  assert _evaluate(run, other, tmp_path / 'e') == 2
  assert words in _one_line(capsys)


class TestBeforeAnythingIsBuilt:
  def test_dry_run_knows_the_shape(self, folder, tmp_path, capsys):
    assert _train(folder, tmp_path / 'run', '--dry_run') == 0
    printed = ' '.join(capsys.readouterr().out.split())
    assert '"classes": "cat/dog"' in printed
    # A pixel's weight for each of two classes, and their biases.
    assert f'Model parameters {16 * 16 * 2 + 2}' in printed

  def test_classes_of_any_bytes(self, tmp_path):
    names = ('a\nb', '\udcff', 'é', '%41', '<b>')
    small_image_folders.write_folder(tmp_path, classes=names, num_images=1)
    config = _config(tmp_path)
    assert config.resolved.class_names == tuple(sorted(map(os.fsencode, names)))
    assert config.model_shape().num_classes == 5
    values = json.loads(json.dumps(config_loading.to_json_dict(config)))
    assert config_loading.from_json_dict(values, 'config.json') == config

  @pytest.mark.parametrize(
    ('path', 'options', 'words'),
    [
      ('ben/cat/x.png', None, "/ben/cat/x.png' must be a whole PNG or JPEG"),
      ('ben/cat/x.png', dict(side=129), 'found 129 x 129 (height x width)'),
      ('ben/cat/x.jpg', dict(mode='RGB'), "/ben/cat/x.jpg' has 16 x 16 x 3"),
      ('ben/emu/x.png', {}, "but 'anna' has no 'emu', which others have"),
    ],
  )
  def test_one_line(self, other, tmp_path, capsys, path, options, words):
    if options is None:
      (other / path).write_text('I am a text.')
    else:
      small_image_folders.write_image(other / path, **options)
    assert _train(other, tmp_path / 'run') == 2
    assert words in _one_line(capsys)
    assert not (tmp_path / 'run').exists()

  def test_nobody_is_held_out_by_itself(self, folder, tmp_path, capsys):
    changes = dict(client_splits__held_out_fraction=None)
    assert _train(folder, tmp_path / 'run', **changes) == 2
    assert (
      '`config.client_splits.held_out_fraction` must be a number with corpus '
      "'image_folder', which holds nobody out itself, found None"
    ) in _one_line(capsys)

  def test_no_partition(self, folder):
    with pytest.raises(ConfigError, match='must be None with corpus .image'):
      _config(
        folder,
        partition__scheme='latent_distributions',
        partition__num_clients=2,
      )

  def test_bomb_takes_little_memory_and_no_tensorflow(self, other, tmp_path):
    (other / 'ben/cat/0.png').write_bytes(small_image_folders.bomb())
    code = """if True:
      import pathlib, sys
      from tff_fedfish.cli.main import main
      from tff_fedfish.data.images import folder
      def peak():
        status = pathlib.Path('/proc/self/status').read_text()
        return int(status.split('VmHWM:')[1].split()[0])
      # What is imported takes more on a machine with many cores.
      before = peak()
      code = main(sys.argv[1:])
      print(code, peak() - before)
      print([m for m in ('tensorflow', 'h5py') if m in sys.modules])
    """
    arguments = ['train', '--config', small_image_runs.CONFIG, '--workdir']
    done = subprocess.run(
      [sys.executable, '-c', code, *arguments, str(tmp_path / 'run')]
      + _overrides(other),
      capture_output=True,
      text=True,
      check=True,
      cwd=pathlib.Path(__file__).parents[2],
    )
    assert done.stderr.count('\n') == 1
    assert "ben/cat/0.png' must be a whole PNG or JPEG file" in done.stderr
    (exit_code, kilobytes), modules = (
      line.split() if line[0] != '[' else line
      for line in done.stdout.splitlines()
    )
    assert exit_code == '2'
    # 400 MB would be unpacked.
    assert int(kilobytes) < 200_000
    assert modules == '[]'


def test_runs_of_a_sweep_have_the_shape(folder, tmp_path):
  path = tmp_path / 'sweep.py'
  path.write_text(
    pathlib.Path(small_image_runs.CONFIG).read_text()
    + "\n\ndef get_sweep():\n  return {'grid': "
    "{'client_work.num_local_epochs': [1, 2]}, 'budget': 'fixed_rounds'}\n"
  )
  varied = '--config.client_work.num_local_epochs='
  overrides = [a for a in _overrides(folder) if not a.startswith(varied)]
  arms = expand_arms(read_sweep_file(path, overrides))
  # So that a finished run is known by its config.json.
  for arm in arms:
    assert arm.config.resolved == _config(folder).resolved
