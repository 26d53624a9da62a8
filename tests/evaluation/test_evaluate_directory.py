"""`fedfish evaluate` of a directory that transformers reads."""

import json
import os
import shutil
import subprocess
import sys
import tempfile

import pytest

from tff_fedfish.cli.main import main


def _evaluate(checkpoint, corpus, *options):
  argv = ['evaluate', '--checkpoint', str(checkpoint), '--data', str(corpus)]
  return main([*argv, *map(str, options)])


@pytest.mark.slow
def test_scores_are_those_of_the_run(
  small_inputs, small_run, small_export, tmp_path, monkeypatch
):
  """On clients that are not told apart: those of another corpus."""
  corpus = shutil.copytree(small_inputs[0], tmp_path / 'corpus')
  # A byte that is no text.
  model = shutil.copytree(small_export, tmp_path / os.fsdecode(b'\xff') / 'm')
  made, mkdtemp = [], tempfile.mkdtemp

  def watch(*args, **kwargs):
    made.append(mkdtemp(*args, **kwargs))
    return made[-1]

  monkeypatch.setattr(tempfile, 'mkdtemp', watch)
  common = ('--learning_rate', 0.3, '--fractions', '0,0.5', '--output')
  assert _evaluate(f'{model}/', corpus, *common, tmp_path / 'found') == 0
  # No copy of the model, which a signal would leave, only the results.
  assert [path.rpartition('.')[0] for path in made] == [f'{tmp_path}/.found']
  found = json.loads((tmp_path / 'found' / 'summary.json').read_text())
  assert found['kind'] == 'transfer'
  typed = rf'{tmp_path}/\xff/m/'
  assert found['checkpoint'] == {'round': 0, 'directory': typed}
  rows = (tmp_path / 'found' / 'per_client.csv').read_text().splitlines()
  assert (
    _evaluate(
      small_run,
      corpus,
      *('--client_split', 'participating', '--split_unit', 'documents'),
      *common,
      tmp_path / 'expected',
    )
    == 0
  )
  path = tmp_path / 'expected' / 'per_client.csv'
  expected = path.read_text().splitlines()
  # The run's own held-out clients are in the first only.
  assert expected[0] == rows[0]
  assert len(expected) > 3
  assert {*expected} <= {*rows}


@pytest.mark.parametrize(
  ('options', 'words'),
  [
    ((), '`--output` is required with'),
    (('--output', 'x', '--barrier'), '`--barrier` is not available for'),
    (
      ('--output', 'x', '--client_split', 'own_test'),
      'a model without a run. Leave it out.',
    ),
  ],
)
def test_what_needs_a_run(
  small_inputs, small_export, tmp_path, monkeypatch, capsys, options, words
):
  monkeypatch.chdir(tmp_path)
  assert _evaluate(small_export, small_inputs[0], *options) == 2
  assert words in capsys.readouterr().err
  assert not list(tmp_path.iterdir())


_DRIVER = """
import json, sys
from tff_fedfish.cli.main import main
for arguments in json.loads(sys.argv[1]):
  print(main(['evaluate', *arguments]), 'tensorflow' in sys.modules)
"""


def test_errors_before_tensorflow(
  small_inputs, small_export, small_run, tmp_path
):
  (tmp_path / 'file').touch()
  corpus = str(small_inputs[0])
  cases = [
    (small_export, 'none', '.', "'none'"),
    (small_export, corpus, '.', '`--output` must be empty or new'),
    (
      *(small_export, corpus, 'new', 'must be at most 8, as in training'),
      *('--sequence_length', '9'),
    ),
    (small_run, corpus, 'new', 'all lie below it', '--held_out_from', '0.99'),
  ]
  arguments = [
    ['--checkpoint', str(run), '--data', data, '--output', output, *flags]
    for run, data, output, _, *flags in cases
  ]
  done = subprocess.run(
    [sys.executable, '-c', _DRIVER, json.dumps(arguments)],
    cwd=tmp_path,
    env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
    capture_output=True,
    text=True,
  )
  assert done.stdout == '2 False\n' * len(cases)
  lines = done.stderr.splitlines()
  for case, line in zip(cases, lines, strict=True):
    assert case[3] in line


def test_vocabulary_of_another_size(
  small_inputs, small_export, tmp_path, capsys
):
  other = shutil.copytree(small_export, tmp_path / 'other')
  shutil.rmtree(other / 'vocabulary')
  path = other / 'tokenizer.json'
  vocabulary = json.loads(path.read_text())
  vocabulary['model']['vocab']['more'] = len(vocabulary['model']['vocab'])
  path.write_text(json.dumps(vocabulary))
  output = ('--output', tmp_path / 'x')
  assert _evaluate(other, small_inputs[0], *output) == 2
  message = capsys.readouterr().err
  assert f"but the vocabulary '{other}' has 257. Use the model's" in message
  assert 'call `model.resize_token_embeddings(257)` in transfor' in message
  assert not (tmp_path / 'x').exists()
