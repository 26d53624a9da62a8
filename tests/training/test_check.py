"""A run that would be refused is so before anything is built, all at once."""

import dataclasses
import json
import os
import pathlib
import re
import shutil

import pyarrow.parquet as pq
import pytest
import small_runs

from models.model_shapes import num_parameters
from tff_fedfish.cli.main import main
from tff_fedfish.config import load as config_loading
from tff_fedfish.training import check, resources

_ROOT = pathlib.Path(__file__).parents[2]


def _arguments(inputs, workdir, *options, **settings):
  return [
    *('train', '--config', small_runs.CONFIG, '--workdir', str(workdir)),
    *options,
    *small_runs.overrides(*inputs, **settings),
  ]


def _files(directory):
  """Returns every file below a directory, with its bytes."""
  return {
    path: path.read_bytes() for path in directory.rglob('*') if path.is_file()
  }


class TestAllProblemsAtOnce:
  _SETTINGS = dict(cohorts__cohort_size=50, model__vocabulary_size=300)

  @pytest.mark.parametrize('options', [['--dry_run'], []])
  def test_train(self, options, small_inputs, tmp_path, capsys):
    arguments = _arguments(
      small_inputs, tmp_path / 'run', *options, **self._SETTINGS
    )
    assert main(arguments) == 2
    lines = [
      line
      for line in capsys.readouterr().err.splitlines()
      if line.startswith('fedfish: error: ')
    ]
    assert len(lines) == 2
    assert 'cohort_size` is 50, but only ' in lines[0]
    assert 'The model has 300 token ids' in lines[1]
    assert not (tmp_path / 'run').exists()

  def test_a_missing_corpus_hides_no_missing_vocabulary(self, tmp_path, capsys):
    inputs = (tmp_path / 'no_corpus', tmp_path / 'no_vocabulary')
    assert main(_arguments(inputs, tmp_path / 'run', '--dry_run')) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert 'no_corpus' in first
    assert 'no_vocabulary' in second

  def test_a_corpus_that_cannot_be_counted_hides_nothing(
    self, small_inputs, tmp_path, capsys
  ):
    corpus = shutil.copytree(small_inputs[0], tmp_path / 'corpus')
    index = corpus / 'index.parquet'
    pq.write_table(pq.read_table(index).drop_columns(['num_words']), index)
    inputs = (corpus, small_inputs[1])
    arguments = _arguments(
      inputs, tmp_path / 'run', '--dry_run', cohorts__cohort_size=50
    )
    assert main(arguments) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert 'cohort_size` is 50, but only ' in first
    assert 'must hold index.parquet, but it is unreadable' in second


def test_what_happens_before_round_1_is_printed(
  small_inputs, tmp_path, capsys, monkeypatch
):
  monkeypatch.setattr('tff_fedfish.progress._MIN_STAGE_SECONDS', 0)
  arguments = _arguments(small_inputs, tmp_path / 'run', training__num_rounds=1)
  assert main(arguments) == 0
  lines = capsys.readouterr().err.splitlines()
  stages = [
    match[1]
    for line in lines
    if (match := re.match(r'(.*) \.\.\. [\d.]+ s', line))
  ]
  assert stages == [
    'opening the corpus',
    'dividing the clients',
    'importing TensorFlow',
    'choosing held-out clients',
    'importing TensorFlow Federated',
    'building the model and its learning process',
    'drawing the weights',
    'scoring round 0',
    'tracing the round',
  ]
  assert any(line.startswith('train: round 1/1') for line in lines)


def test_dry_run_of_a_run_in_use(small_inputs, small_run, capsys):
  from tff_fedfish.run import run_directory

  with run_directory.lock(small_run):
    assert main(_arguments(small_inputs, small_run, '--dry_run')) == 2
  assert 'is in use by process ' in capsys.readouterr().err


def test_dry_run_leaves_a_finished_run_as_it_is(small_inputs, small_run):
  before = _files(small_run)
  assert main(_arguments(small_inputs, small_run, '--dry_run')) == 0
  assert _files(small_run) == before


def _warn(config, workdir):
  resources.print_warnings(config, workdir, check.CheckedRun(history=None))


class TestWarnings:
  @pytest.fixture(autouse=True)
  def _memory(self, monkeypatch):
    found = {'total': 64 << 30, 'available': 32 << 30}
    monkeypatch.setattr(resources.environment, 'memory_bytes', lambda: found)

  def _config(self, inputs, **settings):
    return config_loading.load_config(
      small_runs.CONFIG, small_runs.overrides(*inputs, **settings)
    )

  def test_memory(self, small_inputs, tmp_path, capsys):
    arguments = _arguments(
      small_inputs, tmp_path / 'run', '--dry_run', model__num_layers=10**6
    )
    assert main(arguments) == 0
    assert re.search(
      r'^fedfish: warning: the run takes up to [\d.]+ [GT]iB of memory, and '
      r'this machine has 32\.0 GiB available\.$',
      capsys.readouterr().err,
      re.MULTILINE,
    )

  @pytest.fixture
  def full_disk(self, monkeypatch):
    found = shutil.disk_usage('/')
    monkeypatch.setattr(
      resources.shutil, 'disk_usage', lambda _: found._replace(free=5)
    )

  def test_disk(self, full_disk, small_inputs, tmp_path, capsys):
    _warn(self._config(small_inputs), tmp_path / 'a' / 'b')
    error = capsys.readouterr().err
    assert 'of disk for checkpoints, and the disk of' in error
    assert f'{str(tmp_path)!r} has 5 B available.' in error

  def test_disk_for_uploads(self, full_disk, small_inputs, tmp_path, capsys):
    settings = dict(
      algorithm__name='fisher_merge',
      server__optimizer='sgd',
      server__learning_rate=1.0,
      training__num_rounds=2,
      checkpoints__every_num_rounds=0,
    )
    needed = {}
    for keeps in (False, True):
      settings |= dict(algorithm__keeps_uploads=keeps)
      config = self._config(small_inputs, **settings)
      _warn(config, tmp_path)
      error = capsys.readouterr().err
      assert 'of disk for checkpoints and uploads, and the disk of' in error
      needed[keeps] = float(re.search(r'takes up to ([\d.]+) KiB', error)[1])
    # Two checkpoints, and weights and diagonals of 3 clients for each round.
    model = num_parameters(config.model_shape()) * 4 / 1024
    assert needed == pytest.approx(
      {False: 8 * model, True: 14 * model}, rel=0.01
    )

  def test_unknown_tokens(self, small_inputs, tmp_path, capsys):
    # The vocabulary has Latin letters, the documents Cyrillic ones.
    raw = tmp_path / 'raw.json'
    with open(raw, 'w', encoding='utf-8') as file:
      for i in range(40):
        text = 'привет мир ' * 20
        url = f'https://host{i % 10}.org/{i}'
        line = {'text': text, 'url': url, 'timestamp': '2020-01-01T00:00:00Z'}
        file.write(json.dumps(line) + '\n')
    corpus = tmp_path / 'cyrillic'
    group = ['group', 'c4', '--input', str(raw), '--output', str(corpus)]
    assert main(group) == 0
    inputs = (corpus, small_inputs[1])
    assert main(_arguments(inputs, tmp_path / 'run', '--dry_run')) == 0
    assert re.search(
      r'^fedfish: Unknown tokens: 9\d\.\d\d % \(warning: above 5 %, the '
      r'vocabulary cannot express this text, so scores on it say little\)$',
      capsys.readouterr().err,
      re.MULTILINE,
    )

  def test_what_is_saved_takes_no_more_disk(
    self, full_disk, small_inputs, small_run, capsys
  ):
    _warn(self._config(small_inputs), small_run)
    assert capsys.readouterr().err == ''

  @pytest.mark.parametrize(
    'every, keep_last, keep_every, expected',
    [
      (0, 0, 0, 2),  # Rounds 0 and 10.
      (1, 0, 0, 11),  # Rounds 0 to 10.
      (4, 0, 0, 4),  # Rounds 0, 4, 8, 10.
      (1, 2, 0, 4),  # Round 0, the last two, and one that is being written.
      (1, 2, 5, 6),  # Rounds 5 and 10 besides.
      (4, 9, 0, 4),  # There are no more than these.
    ],
  )
  def test_checkpoint_bytes(
    self, every, keep_last, keep_every, expected, small_inputs
  ):
    config = self._config(
      small_inputs,
      training__num_rounds=10,
      checkpoints__every_num_rounds=every,
      checkpoints__keep_last=keep_last,
      checkpoints__keep_every_num_rounds=keep_every,
    )
    # Embeddings of 256 tokens and 8 positions, the matrices of one layer of
    # width 16, their biases (3 + 1 + 4 + 1), and scale and bias of 3 norms.
    num_weights = 16 * (256 + 8) + 12 * 16**2 + 16 * 9 + 16 * 6
    assert resources.checkpoint_bytes(config) == expected * 3 * 4 * num_weights
    best = config.with_values('checkpoints', keep_best=True)
    assert resources.checkpoint_bytes(best) == (expected + 1) * 12 * num_weights
    sgd = dataclasses.replace(
      config, server=dataclasses.replace(config.server, optimizer='sgd')
    )
    assert resources.checkpoint_bytes(sgd) == expected * 4 * num_weights


def test_configs_are_listed(capsys):
  assert main(['configs']) == 0
  lines = capsys.readouterr().out.splitlines()
  shipped = sorted(path.stem for path in (_ROOT / 'configs').glob('[!_]*.py'))
  assert [line.split()[0] for line in lines[:-1]] == shipped
  assert os.path.isdir(lines[-1].removeprefix('Files: '))
