"""Kept tokens change no byte of a run, also of an older one."""

import json
import shutil

import numpy as np
import pytest
import small_runs

from tff_fedfish.cli.main import main
from tff_fedfish.config import loading as config_loading
from tff_fedfish.data import token_cache
from tff_fedfish.data.client_sequences import ClientSequences
from tff_fedfish.run import cohort_data, run_inputs


@pytest.fixture(autouse=True)
def _keeps_all(tmp_path, monkeypatch):
  """However few and short they are; and nothing is kept in memory."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setattr(token_cache, 'MIN_BYTES', 1)
  monkeypatch.setattr(ClientSequences, '_remember', lambda *_: None)


def _kept(tmp_path, name):
  directory = tmp_path / 'cache' / 'fedfish' / name
  return sorted(p for p in directory.glob('*') if p.name != 'lock')


def test_older_run_is_resumed_to_the_same_bytes(
  small_inputs, small_run, tmp_path
):
  workdir = shutil.copytree(small_run, tmp_path / 'run')
  # As a version before the setting left it after round 2.
  config = json.loads((workdir / 'config.json').read_text())
  del config['data']['token_cache_bytes']
  (workdir / 'config.json').write_text(json.dumps(config))
  for round_num in (3, 4):
    shutil.rmtree(workdir / 'checkpoints' / f'round_{round_num:08d}')
  settings = {'data__token_cache_bytes': 2000}
  assert small_runs.train(small_inputs, workdir, **settings) == 0
  kept = _kept(tmp_path, 'tokens')
  assert kept
  assert sum(path.stat().st_size for path in kept) <= 2000
  # From what is kept, of which one file is damaged.
  (kept[0]).write_bytes(b'damaged')
  for round_num in (3, 4):
    shutil.rmtree(workdir / 'checkpoints' / f'round_{round_num:08d}')
  assert small_runs.train(small_inputs, workdir, **settings) == 0
  for name in (
    'metrics.csv',
    'checkpoints/round_00000003/state.safetensors',
    'checkpoints/round_00000004/state.safetensors',
  ):
    expected = (small_run / name).read_bytes()
    assert (workdir / name).read_bytes() == expected, name


def test_workers_read_the_same_files(small_inputs, tmp_path):
  overrides = small_runs.overrides(
    *small_inputs, data__token_cache_bytes=10**6, engine__kind='ray'
  )
  config = config_loading.load_config(small_runs.CONFIG, overrides)
  corpus = run_inputs.open_corpus(config, config.data.directory)
  tokenizer = run_inputs.open_tokenizer(config, config.data.vocabulary)
  rows = run_inputs.client_rows(config, corpus, tokenizer)
  stored = cohort_data.rows_for_engine(config, rows, small_inputs[1])
  for client_id in corpus.client_ids:
    options = dict(shuffle_seed=1, round_num=1, max_sequences=4)
    one, other = (
      found.training_sequences(client_id, **options) for found in (rows, stored)
    )
    np.testing.assert_array_equal(one.tokens, other.tokens)
  # One file for each client, of whichever came first.
  assert len(_kept(tmp_path, 'tokens')) == len(corpus.client_ids) == 12


def test_images_have_no_tokens(capsys):
  overrides = ['--config.data.token_cache_bytes=1000', '--dry_run']
  arguments = ['train', '--config', 'mnist_by_writer', *overrides]
  assert main(arguments) == 2
  assert (
    '`config.data.token_cache_bytes` must be left out with corpus '
    "'mnist_by_writer', which holds images, found 1000"
  ) in capsys.readouterr().err
