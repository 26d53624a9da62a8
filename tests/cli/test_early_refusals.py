"""Inputs that are refused by their files do not wait for TensorFlow."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest
import small_runs

_RUN = """
import contextlib, io, json, sys
from tff_fedfish.cli.main import main

results = []
for arguments in json.load(sys.stdin):
  output, errors = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
    exit_code = main(arguments)
  is_late = 'tensorflow' in sys.modules
  results.append([exit_code, output.getvalue(), errors.getvalue(), is_late])
print(json.dumps(results))
"""


def _run(*commands):
  """Returns (exit code, output, errors, TensorFlow is imported) of each."""
  done = subprocess.run(
    [sys.executable, '-c', _RUN],
    cwd=pathlib.Path(__file__).parents[2],
    input=json.dumps([[*map(str, command)] for command in commands]),
    capture_output=True,
    text=True,
    check=True,
  )
  return json.loads(done.stdout)


@pytest.fixture
def unfinished(small_run, tmp_path):
  """A run that may go on to another round."""
  return shutil.copytree(small_run, tmp_path / 'run')


def test_refused_by_files(small_inputs, small_tokens, unfinished, tmp_path):
  corpus, vocabulary = small_inputs
  # Of the same size, with two pieces in the other order.
  other = tmp_path / 'other.txt'
  pieces = (vocabulary / 'vocab.txt').read_text('utf-8').split('\n')
  pieces[100], pieces[101] = pieces[101], pieces[100]
  other.write_text('\n'.join(pieces), 'utf-8')
  empty = tmp_path / 'empty'
  empty.mkdir()

  def train(*options, run='new', inputs=small_inputs, **settings):
    settings = dict(training__num_rounds=9) | settings
    return [
      *('train', '--config', small_runs.CONFIG, '--workdir', tmp_path / run),
      *(*options, *small_runs.overrides(*inputs, **settings)),
    ]

  start = dict(training__start_from=unfinished)
  cases = {
    'token ids (`config.model.vocabulary_size`)': train(
      '--dry_run', model__vocabulary_size=300
    ),
    'another config': train(run='run', seeds__model_seed=9),
    'was made with another vocabulary than': train(
      run='run', inputs=(corpus, other)
    ),
    'was trained with another vocabulary': train(
      inputs=(corpus, other), **start
    ),
    'must be of the vocabulary of the run': train(
      inputs=(small_tokens[0], other)
    ),
    'participating clients exist': train(cohorts__cohort_size=99),
    'is not a grouped corpus': train(inputs=(empty, vocabulary)),
    'has the 4 sequences': train(
      inputs=small_tokens, data__sequence_length=4000
    ),
    'holds no config.json': [
      *('report', '--runs', empty, '--output', tmp_path / 'page')
    ],
  }
  for words, result in zip(cases, _run(*cases.values()), strict=True):
    exit_code, output, errors, is_late = result
    assert (exit_code, output, is_late) == (2, '', False), (words, errors)
    assert words in errors
  assert not (tmp_path / 'new').exists()
