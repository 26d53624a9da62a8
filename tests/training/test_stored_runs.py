"""A run on the tokens of a corpus is the run on the corpus, byte for byte."""

import json
import shutil

import numpy as np
import pytest
import small_runs
import token_stores

from tff_fedfish.cli.main import main
from tff_fedfish.config import load as config_loading
from tff_fedfish.data.token_store import TokenStore
from tff_fedfish.run import client_data

_FILES = (
  'metrics.csv',
  'corpus.json',
  'checkpoints/round_00000003/state.safetensors',
  'checkpoints/round_00000004/state.safetensors',
)


def _assert_same(run, expected):
  for name in _FILES:
    assert (run / name).read_bytes() == (expected / name).read_bytes(), name


def test_begun_on_the_corpus(small_tokens, small_run, tmp_path):
  run = shutil.copytree(small_run, tmp_path / 'run')
  for round_num in (3, 4):
    shutil.rmtree(run / f'checkpoints/round_{round_num:08d}')
  assert small_runs.train(small_tokens, run) == 0
  _assert_same(run, small_run)


@pytest.mark.slow
def test_begun_on_the_tokens(small_inputs, small_tokens, small_run, tmp_path):
  run = tmp_path / 'run'
  assert small_runs.train(small_tokens, run, training__num_rounds=2) == 0
  assert small_runs.train(small_inputs, run) == 0
  _assert_same(run, small_run)
  found = []
  for directory, _ in (small_inputs, small_tokens):
    output = tmp_path / directory.name
    arguments = ['--checkpoint', run, '--data', directory, '--output', output]
    arguments += ['--split_unit', 'sequences', '--fractions', '0,0.5']
    assert main(['evaluate', *map(str, arguments)]) == 0
    summary = json.loads((output / 'summary.json').read_text())
    found.append(((output / 'per_client.csv').read_bytes(), summary['corpus']))
  assert found[0] == found[1]


@pytest.mark.slow
def test_workers_read_the_same_rows(small_inputs, small_tokens):
  rows = []
  for inputs in (small_inputs, small_tokens):
    config = config_loading.load_config(
      small_runs.CONFIG, small_runs.overrides(*inputs, engine__kind='ray')
    )
    rows.append(client_data.rows_for_engine(config, None, inputs[1]))
  corpus = client_data.open_corpus(config, config.data.directory)
  for client_id in corpus.client_ids:
    one, other = (
      of.training_sequences(
        client_id, shuffle_seed=1, round_num=1, max_sequences=4
      )
      for of in rows
    )
    np.testing.assert_array_equal(one.tokens, other.tokens)


@pytest.mark.parametrize(
  ('damage', 'words'),
  [
    (
      lambda store: (store / 'tokens.bin').write_bytes(b''),
      "tokens.bin' must have",
    ),
    (
      lambda store: _edit_vocabulary(store, sha256='0' * 64),
      'must be of the vocabulary of the run, with `sha256`',
    ),
    (
      lambda store: _edit_vocabulary(store, lower_case=False),
      'must be of the vocabulary of the run, with `lower_case`',
    ),
  ],
)
def test_refused_before_training(small_tokens, tmp_path, capsys, damage, words):
  store = shutil.copytree(small_tokens[0], tmp_path / 'tokens')
  damage(store)
  inputs = store, small_tokens[1]
  assert small_runs.train(inputs, tmp_path / 'run', '--dry_run') == 2
  lines = capsys.readouterr().err.splitlines()
  (line,) = (line for line in lines if line.startswith('fedfish: error'))
  assert words in line


def test_another_corpus_is_refused(small_tokens, small_run, tmp_path, capsys):
  run = shutil.copytree(small_run, tmp_path / 'run')
  store = shutil.copytree(small_tokens[0], tmp_path / 'tokens')
  token_stores.describe_again(store, corpus_fingerprint='other')
  inputs = store, small_tokens[1]
  assert small_runs.train(inputs, run, training__num_rounds=5) == 2
  assert 'The run was trained on another corpus' in capsys.readouterr().err


def _edit_vocabulary(store, **changes):
  vocabulary = dict(TokenStore(store).description.vocabulary)
  token_stores.describe_again(store, vocabulary=vocabulary | changes)
