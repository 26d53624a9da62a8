"""A run on one part of a split, evaluated on others."""

import json
import shutil

import pytest
import small_runs

from tff_fedfish.cli.main import main
from tff_fedfish.data import grouped_corpus
from tff_fedfish.evaluation import results
from tff_fedfish.run.corpus_identity import CorpusIdentity

# As all clients of a part `train` take part, none is scored while training.
_SETTINGS = {
  'client_splits.held_out_fraction': 0.0,
  'evaluation.num_clients': 0,
  'training.num_rounds': 1,
}


def _make_parts(directory, num_hosts):
  """Groups hosts into the parts `train` and `held_out`."""
  raw, output = directory / 'raw.json.gz', directory / 'parts'
  small_runs.write_raw_corpus(raw, num_hosts)
  command = ['group', 'c4', '--input', str(raw), '--output', str(output)]
  split = ['--split_by', 'client', '--held_out_fraction', '0.4']
  assert main([*command, *split, '--num_shards', '2']) == 0
  return output


def _evaluate(run, data, output, *flags):
  """Evaluates a part without fine-tuning; returns the summary."""
  command = ['evaluate', '--checkpoint', str(run), '--data', str(data)]
  command += ['--output', str(output), '--fractions', '0']
  assert main([*command, *flags]) == 0
  return results.read_evaluation(output).summary


@pytest.fixture(scope='module')
def parts(tmp_path_factory):
  return _make_parts(tmp_path_factory.mktemp('parts'), num_hosts=12)


@pytest.fixture(scope='module')
def run(parts, small_inputs, tmp_path_factory):
  run = tmp_path_factory.mktemp('run') / 'run'
  inputs = parts / 'train', small_inputs[1]
  assert small_runs.train(inputs, run, **_SETTINGS) == 0
  return run


def test_other_part_is_held_out(run, parts, tmp_path, capsys):
  summary = _evaluate(run, parts / 'held_out', tmp_path / 'out')
  assert 'c4, held_out (held_out), round 1' in capsys.readouterr().out
  assert summary.kind == 'held_out'
  assert summary.corpus == 'c4, held_out'
  corpus = grouped_corpus.GroupedCorpus(parts / 'held_out')
  trained_on = json.loads((run / 'corpus.json').read_text())
  assert summary.corpus_identity == CorpusIdentity(
    name='c4',
    key='host',
    part='held_out',
    grouping=trained_on['grouping'],
    fingerprint=corpus.fingerprint,
  )
  # All of its clients.
  skipped = sum(summary.skipped_clients.values())
  assert summary.num_clients + skipped == len(corpus.client_ids)


def test_same_directory_name_of_another_corpus(run, tmp_path):
  other = _make_parts(tmp_path, num_hosts=9)
  summary = _evaluate(run, other / 'held_out', tmp_path / 'evaluation')
  assert summary.kind == 'transfer'
  grouping = json.loads((run / 'corpus.json').read_text())['grouping']
  assert summary.corpus_identity.grouping != grouping


def test_older_run_without_the_file(run, parts, small_inputs, tmp_path):
  older = shutil.copytree(run, tmp_path / 'older')
  (older / 'corpus.json').unlink()
  summary = _evaluate(older, parts / 'held_out', tmp_path / 'out')
  assert summary.kind == 'transfer'
  # It is written when the run goes on.
  settings = _SETTINGS | {'training.num_rounds': 2}
  inputs = parts / 'train', small_inputs[1]
  assert small_runs.train(inputs, older, **settings) == 0
  name = 'corpus.json'
  assert (older / name).read_bytes() == (run / name).read_bytes()


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    (['--barrier'], "`--barrier` needs the run's own corpus as `--data`"),
    (['--client_split', 'participating'], "needs the run's own corpus"),
  ],
)
def test_only_the_run_s_own_part_has_a_cohort(
  run, parts, tmp_path, capsys, flags, words
):
  command = ['evaluate', '--checkpoint', str(run)]
  command += ['--data', str(parts / 'held_out')]
  command += ['--output', str(tmp_path / 'out')]
  assert main([*command, *flags]) == 2
  assert words in capsys.readouterr().err
