"""`fedfish` answers without heavy imports: help, versions and errors."""

import json
import pathlib
import re
import shlex
import subprocess
import sys
from typing import NamedTuple

import pytest

from tff_fedfish.cli import main as cli_main
from tff_fedfish.errors import UserError
from tff_fedfish.version import __version__

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_COMMANDS = tuple(cli_main._COMMANDS)
# Runs many commands one after the other. What takes seconds to import must not
# be there afterwards.
_PROGRAM = """
import contextlib, io, json, sys
from tff_fedfish.cli.main import main
heavy = ('tensorflow', 'tensorflow_federated', 'apache_beam', 'jax',
         'matplotlib', 'pyarrow')
answers = []
for arguments in json.load(sys.stdin):
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    try:
      code = main(arguments)
    except SystemExit as ending:
      code = ending.code
  imported = [name for name in heavy if name in sys.modules]
  answers.append([code, out.getvalue(), err.getvalue(), imported])
print(json.dumps(answers))
"""

# What to type, and what the one line on standard error must say.
_ERRORS = [
  ([], 'the following arguments are required: COMMAND'),
  (['trian'], "unknown command 'trian'; did you mean 'train'?"),
  (['--nope'], 'required: COMMAND'),
  (['demo', '--nope'], 'unrecognized arguments: --nope'),
  (['group'], 'arguments are required: corpus, --input, --output'),
  (['group', 'c5', '--input', 'a', '--output', 'b'], "'c5'"),
  (
    ['group', 'c4', '--input', 'a', '--output', 'b', '--key', 'x'],
    "'x'; --key_f",
  ),
  (
    ['group', 'c4', '--input', 'a', '--output', 'b', '--num_shards', 'few'],
    "--num_shards: invalid int value: 'few'",
  ),
  (['inspect'], 'arguments are required: DIR'),
  (['verify'], 'arguments are required: DIR'),
  (['tokenizer'], 'arguments are required'),
  (['tokenizer', 'nope'], "'nope'"),
  (['tokenize', 'a'], 'arguments are required: --vocabulary'),
  (['train'], '--config is required'),
  (['train', '--conf', 'x.py'], 'did you mean --config?'),
  (['train', '--config', 'demo', '--tracker', 'x'], "invalid choice: 'x'"),
  (['solve', '--workdir', 'x'], 'arguments are required: --uploads'),
  (['train', '--config', 'no.py'], "'no.py' does not exist"),
  (
    ['train', '--config', 'configs/demo.py', '--nope'],
    'unrecognized arguments: --nope; settings are overridden as --config.sec',
  ),
  (
    ['train', '--config', 'demo', '--learning-rate=3'],
    'did you mean --config.client_work.learning_rate or --config.server.lear',
  ),
  (['train', '--config', 'demo', '--wokdir', 'x'], 'did you mean --workdir?'),
  (
    ['tokenizer', 'train', '--data', 'a', '--output', 'b', '--keep-case'],
    'unrecognized arguments: --keep-case; did you mean --keep_case?',
  ),
  (
    ['train', '--config', 'configs/demo.py', '--config.cohort.size=3'],
    '`--config.cohort.size` is unknown; the nearest known one is '
    '`--config.cohorts.cohort_size`',
  ),
  (['train', '--config', 'configs/demo.py'], '--workdir'),
  (['plan', '--no_timing'], 'the following arguments are required: --config'),
  (['configs', '--nope'], 'unrecognized arguments: --nope'),
  (['methods', 'no_method'], "found 'no_method'."),
  (['methods', 'FedAvg'], "found 'FedAvg'; the nearest known one is 'fed_avg'"),
  (['methods', '--json', '--markdown'], 'not allowed with argument'),
  (['evaluate'], 'arguments are required: --checkpoint'),
  (['report'], 'arguments are required: --runs, --output'),
  (['sweep'], 'arguments are required: --config'),
  (['generate'], 'arguments are required: --checkpoint'),
  (['export', '--checkpoint', 'a'], 'arguments are required: --output'),
  (['doctor', '--nope'], 'unrecognized arguments: --nope'),
]


class _Answer(NamedTuple):
  code: int
  out: str
  err: str
  imported: list[str]


_HELP = [['--help'], *([command, '--help'] for command in _COMMANDS)]


@pytest.fixture(scope='module', name='answer')
def _answer():
  """Returns a function from arguments to what they are answered."""
  asked = [*_HELP, ['--version'], *(arguments for arguments, _ in _ERRORS)]
  done = subprocess.run(
    [sys.executable, '-c', _PROGRAM],
    input=json.dumps(asked),
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=300,
    check=True,
  )
  answers = [_Answer(*answer) for answer in json.loads(done.stdout)]
  return lambda arguments: answers[asked.index(arguments)]


@pytest.mark.parametrize('arguments', _HELP, ids=' '.join)
def test_help(arguments, answer):
  code, out, err, imported = answer(arguments)
  assert (code, err, imported) == (0, '', [])
  assert out.startswith('usage: fedfish')
  assert 'Example' in out
  assert f'fedfish {arguments[0]}'.removesuffix(' --help') in out
  assert max(map(len, out.splitlines())) <= 80


def test_help_lists_every_command(answer):
  out = answer(['--help']).out
  for command in _COMMANDS:
    assert re.search(rf'^ +{command}\b', out, re.MULTILINE)


def test_version(answer):
  assert answer(['--version']) == (0, f'fedfish {__version__}\n', '', [])


def test_version_of_a_command(capsys):
  # In this process: what their parsers import, `test_help` checks.
  for command in _COMMANDS:
    with pytest.raises(SystemExit) as ending:
      cli_main.main([command, '--version'])
    assert ending.value.code == 0
    assert capsys.readouterr() == (f'fedfish {__version__}\n', '')


@pytest.mark.parametrize(
  ('arguments', 'words'),
  _ERRORS,
  ids=[' '.join(arguments) or 'none' for arguments, _ in _ERRORS],
)
def test_argument_error(arguments, words, answer):
  code, out, err, imported = answer(arguments)
  assert (code, out, imported) == (2, '', [])
  assert words in err
  assert err.startswith('fedfish')
  assert err.count('\n') == 1
  assert err.endswith('\n')


def test_every_command_has_an_argument_error_tested():
  tested = {arguments[0] for arguments, _ in _ERRORS if arguments}
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


@pytest.mark.parametrize('closed', ['2>&-', '<&- 2>&-', '<&- >&- 2>&-'])
def test_messages_never_go_into_a_file(closed, tmp_path):
  code = (
    'import os, sys\n'
    'from tff_fedfish.cli.main import main\n'
    "assert main(['methods', 'fed_fishy']) == 2\n"
    "with open('rows', 'w') as file:\n"
    "  print('error', file=sys.stderr)\n"
    "  os.write(2, b'error')\n"
  )
  command = f'{shlex.join([sys.executable, "-c", code])} {closed}'
  subprocess.run(command, shell=True, cwd=tmp_path, check=True)
  assert (tmp_path / 'rows').read_text() == ''
