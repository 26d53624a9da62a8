"""`fedfish train` and `evaluate` with models of clients' own, on images."""

import csv
import json
import shutil

import numpy as np
import personal_replay
import personal_runs
import pytest
from personal_replay import Replay
from stateful_runs import assert_same_run

from tff_fedfish.data.divided_clients import shuffled_targets
from tff_fedfish.run import checkpoints, run_directory, tables

# Two distributions, so that others' models are of use to clients.
_SETTINGS = dict(
  partition__scheme='latent_distributions',
  partition__shards_per_client=None,
  client_work__learning_rate=0.01,
)
_COHORTS = dict(
  algorithm__num_downloads=1,
  algorithm__epsilon=0.5,
  algorithm__epsilon_decay=0.1,
  cohorts__cohort_size=3,
  evaluation__every_num_rounds=5,
  training__num_rounds=5,
  checkpoints__every_num_rounds=2,
)


def _train(corpus, run, **settings):
  assert personal_runs.train(corpus, run, **_SETTINGS | settings) == 0
  return run


def _evaluate(corpus, run, *options):
  """Returns the rows of per_client.csv."""
  assert personal_runs.evaluate(corpus, run, *options) == 0
  with open(run / 'out' / 'per_client.csv', newline='') as file:
    return list(csv.DictReader(file))


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  return personal_runs.write_corpus(
    tmp_path_factory.mktemp('mnist') / 'raw', num_classes=2
  )


@pytest.fixture(scope='module')
def cohorts_run(corpus, tmp_path_factory):
  """FedFomo with three of five clients in a round; not to be changed."""
  run = tmp_path_factory.mktemp('personal') / 'cohorts'
  return _train(corpus, run, **_COHORTS)


@pytest.fixture(scope='module')
def evaluated(corpus, cohorts_run, tmp_path_factory):
  """A copy of the run, and what its evaluation wrote."""
  directory = tmp_path_factory.mktemp('evaluated')
  copy = shutil.copytree(cohorts_run, directory / 'run')
  rows = _evaluate(corpus, copy)
  summary = json.loads((copy / 'out' / 'summary.json').read_text())
  return copy, rows, summary


def _weights(run):
  """Returns the server's last weights, (kernel, bias)."""
  found = checkpoints.load_checkpoint(checkpoints.resolve_checkpoint(run))
  names = (f'global_model_weights/trainable/{i}' for i in range(2))
  return [found.tensors[name] for name in names]


def _replayed(run, corpus, num_rounds):
  """Compares the scores of the last round; returns the replay and all rows."""
  replay = Replay(run, corpus)
  replay.run(num_rounds)
  rows = tables.read_metrics(run / 'metrics.csv')
  losses = [replay.score(c, num_rounds) for c in replay.participating]
  np.testing.assert_allclose(
    rows[-1]['personal/loss'], np.mean(losses), atol=1e-5
  )
  assert rows[-1]['personal/num_clients'] == len(losses)
  return replay, rows


class TestReplay:
  def test_fed_fomo(self, cohorts_run, corpus):
    replay, rows = _replayed(cohorts_run, corpus, 5)
    for client_id, expected in replay.kept.items():
      found = personal_replay.kept_of(cohorts_run, client_id)
      for slot in ('model', 'baseline'):
        for tensor, wanted in zip(found[slot], expected[slot], strict=True):
          np.testing.assert_allclose(tensor, wanted, atol=1e-5)
      np.testing.assert_allclose(
        found['affinity'], expected['affinity'], atol=1e-5
      )
    assert [row['train/num_downloads'] or 0 for row in rows] == (
      replay.num_downloads
    )
    # Others' models were of use; somebody came first in a later round, and
    # somebody was not there in the round before.
    assert replay.num_helpful > 2
    assert sum(replay.num_downloads) > 4
    assert len({kept['round_num'] for kept in replay.kept.values()}) > 1

  @pytest.mark.slow
  def test_local_only(self, corpus, tmp_path):
    run = _train(
      corpus,
      tmp_path / 'run',
      algorithm__name='local_only',
      training__num_rounds=2,
    )
    _, rows = _replayed(run, corpus, 2)
    assert rows[-1]['personal/loss'] < rows[0]['personal/loss']
    for row in rows:
      assert row['communication/total_units'] == 0
      assert row['communication/total_bytes'] == 0
    # The server keeps its initial weights.
    for tensor, expected in zip(
      _weights(run), personal_replay.initial_weights(run), strict=True
    ):
      np.testing.assert_array_equal(tensor, expected)
    assert {row['model'] for row in _evaluate(corpus, run)} == {'personal'}


class TestResume:
  def test_ends_as_if_it_had_not_stopped(self, corpus, cohorts_run, tmp_path):
    run = tmp_path / 'run'
    _train(corpus, run, **_COHORTS | {'training__num_rounds': 3})
    # After the checkpoint of round 2, round 3 is run again: from the uploads of
    # round 2 and states that round 3 superseded.
    shutil.rmtree(run / 'checkpoints' / 'round_00000003')
    _train(corpus, run, **_COHORTS)
    assert_same_run(run, cohorts_run)

  def test_communication_is_what_was_sent(self, cohorts_run):
    rows = tables.read_metrics(cohorts_run / 'metrics.csv')
    num_sent, size = 0, 7850 * 4
    for row in rows:
      num_sent += row['train/num_downloads'] or 0
      num_rounds = row['round']
      total = row['communication/total_units']
      np.testing.assert_allclose(total, num_rounds + num_sent / 3)
      assert row['communication/uplink_bytes'] == 3 * num_rounds * size
      assert row['communication/total_bytes'] == (
        (3 * num_rounds + num_sent) * size
      )
    # Nobody came twice before round 2.
    assert not rows[1]['train/num_downloads']
    assert num_sent > 0


@pytest.mark.slow
class TestEvaluate:
  def test_every_client_has_a_model_of_its_own(self, cohorts_run, evaluated):
    _, rows, summary = evaluated
    assert [row['client_id'] for row in rows] == [
      f'client-{n:04}' for n in range(5)
    ]
    assert {row['model'] for row in rows} == {'personal'}
    last = tables.read_metrics(cohorts_run / 'metrics.csv')[-1]
    for name in ('loss', 'accuracy'):
      values = [float(row[f'{name}_before']) for row in rows]
      np.testing.assert_allclose(np.mean(values), last[f'personal/{name}'])
    assert summary['kind'] == 'own_test'
    assert summary['checkpoint'] == {'round': 5}

  def test_max_clients(self, corpus, evaluated):
    copy, whole, *_ = evaluated
    chosen = []
    for number in (2, 3):
      rows = _evaluate(corpus, copy, '--max_clients', str(number))
      assert [row for row in whole if row in rows] == rows
      chosen.append({row['client_id'] for row in rows})
    # A sample, which begins with a smaller one.
    assert chosen[0] < chosen[1] != {f'client-{n:04}' for n in range(3)}

  @pytest.mark.parametrize(
    ('options', 'message'),
    [
      (
        ['--barrier'],
        "`--barrier` is not available for 'fed_fomo'. Leave it out.",
      ),
      (
        ['--fractions', '0.5'],
        "`--fractions` is not read with 'fed_fomo' (personal models). Leave it "
        'out.',
      ),
    ],
  )
  def test_options(self, options, message, corpus, evaluated, capsys):
    assert personal_runs.evaluate(corpus, evaluated[0], *options) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
      f'fedfish: error: {message}'
    )

  def test_another_corpus(self, evaluated, tmp_path, capsys):
    copy = evaluated[0]
    other = personal_runs.write_corpus(
      tmp_path / 'other', num_train=80, num_classes=2
    )
    assert personal_runs.evaluate(other, copy) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert (
      "'fed_fomo' (personal models) needs the run's own corpus as `--data`, "
      f"but {str(other)!r} is another one. Name the run's."
    ) in error


@pytest.mark.slow
class TestGlobalModel:
  @pytest.fixture(scope='class')
  def run(self, corpus, tmp_path_factory):
    return _train(
      corpus,
      tmp_path_factory.mktemp('fed_avg') / 'run',
      **self._SETTINGS,
    )

  _SETTINGS = dict(
    algorithm__name='fed_avg',
    training__num_rounds=1,
    checkpoints__every_num_rounds=0,
  )

  def _own_tests(self, corpus, run):
    return _evaluate(corpus, run, '--client_split', 'own_test')

  def test_is_scored_on_the_same_rows(self, corpus, run, evaluated):
    rows = self._own_tests(corpus, run)
    names = ('client_id', 'fraction', 'num_evaluation_sequences')
    assert [[row[n] for n in names] for row in rows] == [
      [row[n] for n in names] for row in evaluated[1]
    ]
    assert {row['model'] for row in rows} == {'global'}
    replay = Replay(run, corpus)
    for row in rows:
      tests = replay.rows.test_sequences(row['client_id'].encode())
      loss, _ = personal_replay.scores(_weights(run), tests)
      np.testing.assert_allclose(float(row['loss_before']), loss, atol=1e-5)

  def test_shuffled_targets(self, corpus, run, tmp_path):
    expected = {
      row['client_id']: row['loss_before']
      for row in self._own_tests(corpus, run)
    }
    other = _train(
      corpus,
      tmp_path / 'run',
      client_splits__shuffles_targets=True,
      **self._SETTINGS,
    )
    # It trains on the same rows.
    for tensor, expected_tensor in zip(
      _weights(other), _weights(run), strict=True
    ):
      np.testing.assert_array_equal(tensor, expected_tensor)
    seed = run_directory.read_config(run).seeds.split_seed
    target_of = shuffled_targets(map(str.encode, expected), split_seed=seed)
    found = self._own_tests(corpus, other)
    assert any(i != j for i, j in target_of.items())
    for row in found:
      target = target_of[row['client_id'].encode()].decode()
      assert row['loss_before'] == expected[target]

  def test_held_out_clients_are_still_scored(self, corpus, run):
    rows = _evaluate(corpus, run, '--fractions', '0')
    assert [row['client_id'] for row in rows] == [
      f'test-{n:04}' for n in range(5)
    ]
    assert 'model' not in rows[0]
