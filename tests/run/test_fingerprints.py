"""A checkpoint is tied to its vocabulary and settings."""

import dataclasses
import hashlib
import json
import pathlib
import shutil

import pytest
import small_runs

from tff_fedfish.cli.main import main
from tff_fedfish.config import load as config_loading
from tff_fedfish.errors import UserError
from tff_fedfish.methods import fed_avg
from tff_fedfish.run import checkpoints, run_directory

_CONFIG = config_loading.load_config(small_runs.CONFIG)


def _problem(config, made_with=None):
  """Returns what is wrong with a checkpoint that a config made, or ''."""
  contents = run_directory.checkpoint_contents(_CONFIG, None, None)
  contents = json.loads(json.dumps(contents)) | (made_with or {})
  checkpoint = checkpoints.Checkpoint(
    path=pathlib.Path('run/checkpoints/round_00000001'),
    round_num=1,
    tensors={},
    contents=contents,
  )
  try:
    run_directory.require_same_run(checkpoint, config, None, None)
  except UserError as error:
    return str(error)
  return ''


def _with(section, **values):
  changed = dataclasses.replace(getattr(_CONFIG, section), **values)
  return dataclasses.replace(_CONFIG, **{section: changed})


@pytest.mark.parametrize(
  'section, values',
  [
    ('training', {'num_rounds': 31}),
    ('data', {'directory': 'moved', 'vocabulary': 'also_moved'}),
    # Its weights are in the checkpoint; it may have moved.
    ('training', {'start_from': 'runs/other'}),
  ],
)
def test_what_may_change_on_resume_is_left_out(section, values):
  assert not _problem(_with(section, **values))


@pytest.mark.parametrize(
  'section, values, words',
  [
    ('seeds', {'split_seed': 4}, 'seeds.split_seed 3, not 4. Restore that'),
    ('client_work', {'learning_rate': 0.2}, 'client_work.learning_rate 0.1'),
    ('algorithm', {'fisher_estimator': 'last_epoch'}, "not 'last_epoch'"),
  ],
)
def test_what_may_not_change_is_in_it(section, values, words):
  assert words in _problem(_with(section, **values))


def test_the_method_counts():
  average = fed_avg.FedAvg()
  other = dataclasses.replace(_CONFIG, algorithm=average)
  assert "algorithm.name 'fed_fish', not 'fed_avg'" in _problem(other)


def test_settings_of_another_version_are_no_difference():
  settings = run_directory.settings_of_numbers(_CONFIG)
  del settings['seeds.shuffle_seed']
  settings['seeds.dropout_seed'] = 6
  assert not _problem(_CONFIG, {'settings': settings})


@pytest.fixture(scope='module')
def other_vocabulary(small_inputs, tmp_path_factory):
  """A vocabulary of the same size with other pieces."""
  directory = tmp_path_factory.mktemp('other') / 'vocabulary'
  corpus, vocabulary = small_inputs
  shutil.copytree(vocabulary, directory)
  file = directory / 'vocab.txt'
  pieces = file.read_text('utf-8').splitlines()
  # Two words change places.
  pieces[-1], pieces[-2] = pieces[-2], pieces[-1]
  file.write_text('\n'.join(pieces) + '\n', 'utf-8')
  metadata = json.loads((directory / 'tokenizer.json').read_text('utf-8'))
  metadata['sha256'] = hashlib.sha256(file.read_bytes()).hexdigest()
  (directory / 'tokenizer.json').write_text(json.dumps(metadata), 'utf-8')
  return directory


def _replace_vocabulary(workdir, other):
  shutil.rmtree(workdir / 'vocabulary')
  shutil.copytree(other, workdir / 'vocabulary')


def _error(capsys):
  found = capsys.readouterr().err
  assert found.count('\n') == 1, found
  return found


class TestRunOnDisk:
  @pytest.fixture
  def workdir(self, small_run, tmp_path):
    return shutil.copytree(small_run, tmp_path / 'run')

  def _commands(self, workdir, corpus, tmp_path):
    output = ['--output', str(tmp_path / 'out')]
    run = ['--checkpoint', str(workdir)]
    return [
      ['evaluate', *run, '--data', str(corpus), *output],
      ['export', *run, *output],
      ['generate', *run, '--prompt', 'the'],
      ['verify', str(workdir)],
    ]

  def test_another_vocabulary_in_the_run(
    self, workdir, small_inputs, other_vocabulary, tmp_path, capsys
  ):
    _replace_vocabulary(workdir, other_vocabulary)
    for command in self._commands(workdir, small_inputs[0], tmp_path):
      assert main(command) == 2
      error = _error(capsys)
      assert 'was made with another vocabulary than' in error
      assert 'Restore it, or name that of the run as' in error
    assert not (tmp_path / 'out').exists()

  @pytest.mark.parametrize('named', [None, 'the same path'])
  def test_another_vocabulary_before_the_first_checkpoint(
    self, named, workdir, small_inputs, other_vocabulary
  ):
    # As after a kill; with the same path, its files were replaced.
    shutil.rmtree(workdir / 'checkpoints')
    (workdir / 'metrics.csv').unlink()
    if named:
      path = workdir / 'config.json'
      values = json.loads(path.read_text('utf-8'))
      values['data']['vocabulary'] = str(other_vocabulary)
      path.write_text(json.dumps(values), 'utf-8')
    inputs = (small_inputs[0], other_vocabulary)
    assert small_runs.train(inputs, workdir, training__num_rounds=1) == 0
    pieces = [p / 'vocab.txt' for p in (workdir / 'vocabulary', inputs[1])]
    assert pieces[0].read_bytes() == pieces[1].read_bytes()
    assert main(['verify', str(workdir)]) == 0
    more = ['--config.training.num_rounds=2']
    assert main(['train', '--workdir', str(workdir), *more]) == 0

  def test_another_config_in_the_run(
    self, workdir, small_inputs, tmp_path, capsys
  ):
    path = workdir / 'config.json'
    values = json.loads(path.read_text('utf-8'))
    values['seeds']['split_seed'] += 1
    path.write_text(json.dumps(values), 'utf-8')
    for command in self._commands(workdir, small_inputs[0], tmp_path):
      assert main(command) == 2
      error = _error(capsys)
      assert 'was made with other settings than' in error
      assert f'{str(path)!r} holds: seeds.split_seed 3, not 4' in error
