"""docs/what_went_wrong.md shows the messages that commands print."""

import json
import re
import shlex
import subprocess

import pytest
from doc_pages import ROOT

from tff_fedfish.cli.main import main
from tff_fedfish.config import load
from tff_fedfish.errors import FailedError
from tff_fedfish.run import divergence

_PAGE = (ROOT / 'docs' / 'what_went_wrong.md').read_text('utf-8')
# The command and the lines it prints, of which long ones are continued.
_BLOCKS = re.findall(r'^```\n\$ (.+)\n((?:.+\n)+)```', _PAGE, re.MULTILINE)
_MESSAGES = {
  command: re.sub(r'\n +', ' ', text).splitlines() for command, text in _BLOCKS
}
_HOME = '/home/you'


@pytest.fixture(scope='module')
def home(tmp_path_factory):
  """A directory with notes of six writers, their corpus, and a run."""
  home = tmp_path_factory.mktemp('home')
  with (home / 'notes.jsonl').open('w') as file:
    for number in range(60):
      note = {'writer': f'w{number % 6}', 'text': 'the law of a free people'}
      file.write(json.dumps(note) + '\n')
  corpus = str(home / 'corpora' / 'notes')
  for command in (
    ['group', 'json_lines', '--input', str(home / 'notes.jsonl')]
    + ['--output', corpus, '--key_field', 'writer', '--text_field', 'text'],
    ['tokenizer', 'train', '--data', corpus, '--vocabulary_size', '512']
    + ['--output', f'{corpus}_vocabulary'],
  ):
    assert main(command) == 0
  settings = {
    'data.directory': 'corpora/notes',
    'data.vocabulary': 'corpora/notes_vocabulary',
    'model.vocabulary_size': 512,
    'cohorts.cohort_size': 3,
    'client_splits.held_out_fraction': 0.5,
  }
  config = load.load_config(
    'demo', [f'--config.{name}={value}' for name, value in settings.items()]
  )
  run = home / 'runs' / 'mine'
  run.mkdir(parents=True)
  (run / 'config.json').write_text(json.dumps(load.to_json_dict(config)))
  return home


def test_there_are_ten():
  assert len(_BLOCKS) == 10
  assert re.findall(r'^## (\d+)\. ', _PAGE, re.MULTILINE) == [
    str(number) for number in range(1, 11)
  ]


def test_python_is_missing(tmp_path):
  # Where the machine has 3.11, only the end of the script comes to that.
  script = (ROOT / 'requirements' / 'find_python.sh').read_text()
  python = tmp_path / 'python3'
  python.write_text('#!/bin/sh\necho Python 3.12.1\n')
  python.chmod(0o755)
  done = subprocess.run(
    ['bash', '-c', script[script.index('\nfound=') :]],
    env={'PATH': f'{tmp_path}:/usr/bin:/bin'},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 1
  assert done.stderr.splitlines() == _MESSAGES['make .venv']


@pytest.mark.parametrize('command', list(_MESSAGES)[1:9])
def test_commands_print_it(home, monkeypatch, capsys, command):
  monkeypatch.chdir(home)
  assert main(shlex.split(command)[1:]) == 2
  printed = capsys.readouterr().err.replace(str(home), _HOME).splitlines()
  errors = [line for line in printed if line.startswith('fedfish: error: ')]
  assert errors == _MESSAGES[command]


def test_a_run_that_diverged(home):
  command, (message,) = list(_MESSAGES.items())[9]
  assert command == 'fedfish train --workdir runs/mine'
  run = home / 'runs' / 'mine'
  for number in range(3):
    (run / 'checkpoints' / f'round_{number:08d}').mkdir(parents=True)
  rows = [
    {
      'round': number,
      'train/num_clients': 4,
      'train/update_is_non_finite': int(number > 2),
      'train/num_empty_clients': 0,
      'train/num_non_finite_clients': 0,
      'train/num_failed_clients_data': 0,
      'train/num_failed_clients_out_of_memory': 0,
      'train/num_failed_clients_error': 0,
    }
    for number in range(13)
  ]
  with pytest.raises(FailedError) as caught:
    divergence.RoundHistory(run, 10, rows).require_not_diverged()
  printed = str(caught.value).replace(str(home), _HOME)
  assert f'fedfish: failed: {printed}' == message
