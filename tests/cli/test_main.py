"""`fedfish` answers without heavy imports: help, versions and errors."""

import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

import pytest

from tff_fedfish.cli import main as cli_main
from tff_fedfish.errors import UserError
from tff_fedfish.version import __version__

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_COMMANDS = tuple(cli_main._COMMANDS)
# Runs the command as `python -m` does. Where it has imported what takes seconds
# to import, standard error has a line more.
_PROGRAM = """
import runpy, sys
heavy = ('tensorflow', 'tensorflow_federated', 'apache_beam', 'jax',
         'matplotlib', 'pyarrow')
try:
  runpy.run_module('tff_fedfish', run_name='__main__', alter_sys=True)
finally:
  found = [name for name in heavy if name in sys.modules]
  if found:
    print('imported:', *found, file=sys.stderr)
"""

# What to type, and what the one line on standard error must say.
_ARGUMENT_ERRORS = [
  ([], 'the following arguments are required: COMMAND'),
  (['trian'], "'trian'"),
  (['--nope'], 'required: COMMAND'),
  (['demo', '--nope'], 'unrecognized arguments: --nope'),
  (['demo', 'runs/x'], 'unrecognized arguments: runs/x'),
  (['demo', '--workdir'], '--workdir: expected one argument'),
  (['group'], 'arguments are required: corpus, --input, --output'),
  (['group', 'c5', '--input', 'a', '--output', 'b'], "'c5'"),
  (['group', 'c4', '--input', 'a', '--output', 'b', '--key', 'x'], "'x'"),
  (['group', 'c4', '--output', 'b'], 'arguments are required: --input'),
  (
    ['group', 'c4', '--input', 'a', '--output', 'b', '--num_shards', 'few'],
    "--num_shards: invalid int value: 'few'",
  ),
  (['inspect'], 'arguments are required: DIR'),
  (['inspect', 'a', 'b'], 'unrecognized arguments: b'),
  (['verify'], 'arguments are required: DIR'),
  (['tokenizer'], 'arguments are required'),
  (['tokenizer', 'nope'], "'nope'"),
  (['tokenize', 'a'], 'arguments are required: --vocabulary'),
  (['train'], 'arguments are required: --config'),
  (['train', '--conf', 'x.py'], 'arguments are required: --config'),
  (['train', '--config', 'demo', '--tracker', 'x'], "invalid choice: 'x'"),
  (['solve', '--workdir', 'x'], 'arguments are required: --uploads'),
  (['train', '--config', 'no.py'], "'no.py' does not exist"),
  (
    ['train', '--config', 'configs/demo.py', '--nope'],
    "unrecognized argument '--nope'",
  ),
  (
    ['train', '--config', 'configs/demo.py', '--config.cohort.size=3'],
    '`--config.cohort.size` is unknown; the nearest known one is '
    '`--config.cohorts.cohort_size`',
  ),
  (['train', '--config', 'configs/demo.py'], '--workdir'),
  (['plan', '--no_timing'], 'the following arguments are required: --config'),
  (['configs', '--nope'], 'unrecognized arguments: --nope'),
  (['methods', 'no_method'], "found 'no_method'"),
  (['methods', '--json', '--markdown'], 'not allowed with argument'),
  (['evaluate'], 'arguments are required: --checkpoint'),
  (['evaluate', '--nope'], 'arguments are required: --checkpoint'),
  (['report'], 'arguments are required: --runs, --output'),
  (['report', '--runs', 'a'], 'arguments are required: --output'),
  (['sweep'], 'arguments are required: --config'),
  (['generate'], 'arguments are required: --checkpoint'),
  (['export', '--checkpoint', 'a'], 'arguments are required: --output'),
  (['doctor', '--nope'], 'unrecognized arguments: --nope'),
]


class _Answer(NamedTuple):
  code: int
  out: str
  err: str


def _fedfish(*arguments):
  done = subprocess.run(
    [sys.executable, '-c', _PROGRAM, *arguments],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=300,
  )
  return _Answer(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
  'arguments',
  [['--help'], *([command, '--help'] for command in _COMMANDS)],
  ids=' '.join,
)
def test_help(arguments):
  answer = _fedfish(*arguments)
  assert (answer.code, answer.err) == (0, '')
  assert answer.out.startswith('usage: fedfish')
  assert 'Example' in answer.out
  assert f'fedfish {arguments[0]}'.removesuffix(' --help') in answer.out
  assert max(map(len, answer.out.splitlines())) <= 80


def test_help_lists_every_command():
  out = _fedfish('--help').out
  for command in _COMMANDS:
    assert re.search(rf'^ +{command}\b', out, re.MULTILINE)


def test_version():
  assert _fedfish('--version') == (0, f'fedfish {__version__}\n', '')


@pytest.mark.parametrize('command', _COMMANDS)
def test_version_of_a_command(command, capsys):
  # In this process: what its parser imports, `test_help` checks.
  with pytest.raises(SystemExit) as ending:
    cli_main.main([command, '--version'])
  assert ending.value.code == 0
  assert capsys.readouterr() == (f'fedfish {__version__}\n', '')


@pytest.mark.parametrize(
  ('arguments', 'words'),
  _ARGUMENT_ERRORS,
  ids=[' '.join(arguments) or 'none' for arguments, _ in _ARGUMENT_ERRORS],
)
def test_argument_error(arguments, words):
  answer = _fedfish(*arguments)
  assert answer.code == 2
  assert answer.out == ''
  assert words in answer.err
  assert answer.err.startswith('fedfish')
  assert answer.err.count('\n') == 1
  assert answer.err.endswith('\n')


def test_every_command_has_an_argument_error_tested():
  tested = {arguments[0] for arguments, _ in _ARGUMENT_ERRORS if arguments}
  assert set(_COMMANDS) <= tested


def _exit_code(monkeypatch, raised):
  """Returns what `fedfish doctor` exits with when it raises."""
  from tff_fedfish.cli import doctor

  def run(arguments):
    raise raised

  monkeypatch.setattr(doctor, 'run', run)
  return cli_main.main(['doctor'])


def test_user_error_is_one_line_and_exit_code_2(monkeypatch, capsys):
  error = UserError('`--data` must be a corpus, found a file. Name a corpus.')
  assert _exit_code(monkeypatch, error) == 2
  assert capsys.readouterr() == (
    '',
    'fedfish: error: `--data` must be a corpus, found a file. Name a corpus.\n',
  )


def test_ctrl_c_is_exit_code_130(monkeypatch, capsys):
  assert _exit_code(monkeypatch, KeyboardInterrupt()) == 130
  assert capsys.readouterr().err == 'fedfish: interrupted.\n'


def test_a_defect_is_not_hidden(monkeypatch):
  with pytest.raises(RuntimeError, match='a defect'):
    _exit_code(monkeypatch, RuntimeError('a defect'))


def test_reader_that_leaves_early():
  # `| head -1` closes the pipe while help is being written.
  done = subprocess.run(
    f'{sys.executable} -m tff_fedfish --help | head -1',
    shell=True,
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.stdout.startswith('usage: fedfish')
  assert done.stderr == ''
