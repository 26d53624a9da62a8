"""Removed commands, options and settings answer with one line of advice."""

import pytest

from tff_fedfish import removed
from tff_fedfish.cli.main import main


def _error(capsys) -> str:
  (line,) = capsys.readouterr().err.splitlines()
  return line


@pytest.mark.parametrize('command', removed.COMMANDS)
def test_commands(command, capsys):
  assert main([command]) == 2
  assert removed.COMMANDS[command] in _error(capsys)


@pytest.mark.parametrize('name', removed.OPTIONS)
def test_options(name, capsys):
  command, option = name.split()
  assert main([command, f'{option}=x']) == 2
  assert removed.OPTIONS[name] in _error(capsys)


def test_settings(capsys):
  for name, advice in removed.SETTINGS.items():
    overrides = ['--config', 'demo', f'--config.{name}=1', '--dry_run']
    assert main(['train', *overrides]) == 2
    line = _error(capsys)
    assert f'`--config.{name}` was removed: {advice.removesuffix(".")}' in line
