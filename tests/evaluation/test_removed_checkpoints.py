"""Checkpoints that a run removes while a command opens them."""

import shutil

import pytest

from tff_fedfish.cli.main import main
from tff_fedfish.run import checkpoints, client_data


@pytest.fixture
def run(small_run, tmp_path, monkeypatch):
  """A run that saves round 4, and removes 3, while a command reads it."""
  run = shutil.copytree(small_run, tmp_path / 'run')
  directory = run / 'checkpoints'
  later = (directory / 'round_00000004').rename(tmp_path / 'later')
  open_tokenizer = client_data.open_tokenizer

  def go_on(*arguments):
    if later.exists():
      later.rename(directory / 'round_00000004')
      shutil.rmtree(directory / 'round_00000003')
    return open_tokenizer(*arguments)

  monkeypatch.setattr(client_data, 'open_tokenizer', go_on)
  return run


def _arguments(command, corpus, tmp_path):
  output = ['--output', str(tmp_path / 'output')]
  if command == 'export':
    return ['export', *output, '--format', 'safetensors', '--checkpoint']
  output += ['--data', str(corpus), '--split_unit', 'sequences']
  return ['evaluate', *output, '--fractions', '0', '--checkpoint']


@pytest.mark.parametrize('command', ['evaluate', 'export'])
def test_the_next_last_one_is_taken(
  command, run, small_inputs, tmp_path, capsys
):
  arguments = _arguments(command, small_inputs[0], tmp_path)
  assert main([*arguments, str(run)]) == 0
  assert checkpoints.list_rounds(run / 'checkpoints') == [0, 1, 2, 4]
  assert 'ound 4' in capsys.readouterr().out
  assert not list((tmp_path / 'output').parent.glob('.*'))


@pytest.mark.parametrize('command', ['evaluate', 'export'])
def test_one_that_was_named_is_refused(
  command, run, small_inputs, tmp_path, capsys
):
  arguments = _arguments(command, small_inputs[0], tmp_path)
  path = checkpoints.path_of(run / 'checkpoints', 3)
  # While it is read, and before.
  for _ in range(2):
    assert main([*arguments, str(path)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == (
      f"fedfish: error: `--checkpoint`: '{path}' was not kept by its run "
      '(`checkpoints.keep_last`). Name a kept one: round 0, 1, 2, 4.'
    )
