"""Runs that diverge: which rounds are non-finite, and what a run does then."""

import json

import pytest
import small_runs

from tff_fedfish.cli.main import main
from tff_fedfish.errors import FailedError
from tff_fedfish.run import (
  build,
  checkpoints,
  columns,
  divergence,
  tables,
)

# A step so large that no client returns a finite update after round 1.
_DIVERGING = dict(
  algorithm__name='fed_avg',
  server__optimizer='sgd',
  server__learning_rate=1e30,
  evaluation__num_clients=0,
  evaluation__every_num_rounds=0,
)


def _row(round_num=1, **counts):
  counts = {
    'num_clients': 4,
    'num_empty_clients': 0,
    'num_non_finite_clients': 0,
    'num_failed_clients_data': 0,
    'num_failed_clients_out_of_memory': 0,
    'num_failed_clients_error': 0,
    'update_is_non_finite': 0,
  } | counts
  row = {f'train/{name}': count for name, count in counts.items()}
  return {'round': round_num, **row}


@pytest.mark.parametrize(
  ('counts', 'expected'),
  [
    (dict(), False),
    (dict(num_non_finite_clients=3), False),
    (dict(num_non_finite_clients=4), True),
    # 4 - 1 empty - 1 failed = 2 with data.
    (
      dict(
        num_non_finite_clients=2, num_empty_clients=1, num_failed_clients_data=1
      ),
      True,
    ),
    (
      dict(
        num_non_finite_clients=1,
        num_empty_clients=1,
        num_failed_clients_error=1,
      ),
      False,
    ),
    # FedFish: 3 finite updates whose product with the Fisher mass is not.
    (dict(num_non_finite_clients=1, num_overflowing_clients=3), True),
    (dict(num_non_finite_clients=1, num_overflowing_clients=2), False),
    (dict(update_is_non_finite=1), True),
    # Nobody with data: nothing went wrong.
    (dict(num_empty_clients=4), False),
    (dict(num_empty_clients=3, num_failed_clients_out_of_memory=1), False),
  ],
)
def test_non_finite_rounds(counts, expected):
  assert columns.is_non_finite(_row(**counts)) is expected


def test_round_0_is_finite():
  assert not columns.is_non_finite({'round': 0, 'train/num_clients': None})


class TestHistory:
  def _history(self, run, non_finite, *, last_round, limit=0):
    for round_num in range(last_round + 1):
      (run / 'checkpoints' / f'round_{round_num:08d}').mkdir(parents=True)
    return divergence.RoundHistory(
      run,
      limit,
      [
        _row(r, num_non_finite_clients=4 * (r in non_finite))
        for r in range(last_round + 1)
      ],
    )

  @pytest.mark.parametrize(
    ('non_finite', 'good', 'kept', 'num_in_a_row'),
    [
      (set(), 6, {6}, 0),
      # Round 4's own step may be what broke the model.
      ({5, 6}, 3, {3, 4}, 2),
      ({2, 3}, 6, {6}, 0),
      ({2, 6}, 4, {4, 5}, 1),
      ({1, 2, 3, 4, 5, 6}, 0, {0}, 6),
      ({2, 3, 4, 5, 6}, 0, {0, 1}, 5),
    ],
  )
  def test_last_good_checkpoint(
    self, tmp_path, non_finite, good, kept, num_in_a_row
  ):
    history = self._history(tmp_path, non_finite, last_round=6)
    path = tmp_path / 'checkpoints' / f'round_{good:08d}'
    assert history.last_good_checkpoint() == path
    # What later checkpoints do not push out.
    assert set(history.good_and_finite()) == kept
    assert history.num_in_a_row == num_in_a_row

  def test_last_good_is_one_that_is_saved(self, tmp_path):
    history = self._history(tmp_path, {5, 6}, last_round=6)
    for name in ('round_00000002', 'round_00000003'):
      (tmp_path / 'checkpoints' / name).rmdir()
    assert history.last_good_checkpoint().name == 'round_00000001'

  def test_round_that_is_about_to_be_saved(self, tmp_path):
    history = self._history(tmp_path, {2}, last_round=6)
    for path in sorted((tmp_path / 'checkpoints').iterdir())[4:]:
      path.rmdir()
    assert history.good_and_finite() == (3, 3)
    assert history.good_and_finite(6) == (6, 6)

  def test_later_checkpoints_are_damaged_ones(self, tmp_path):
    history = self._history(tmp_path, set(), last_round=2)
    (tmp_path / 'checkpoints' / 'round_00000009').mkdir()
    assert history.last_good_checkpoint().name == 'round_00000002'

  @pytest.mark.parametrize(
    ('limit', 'has_diverged'), [(0, False), (2, True), (3, True), (4, False)]
  )
  def test_limit(self, tmp_path, limit, has_diverged):
    history = self._history(tmp_path, {4, 5, 6}, last_round=6, limit=limit)
    assert history.has_diverged == has_diverged
    if not has_diverged:
      history.require_not_diverged()
      return
    with pytest.raises(FailedError) as caught:
      history.require_not_diverged()
    assert str(caught.value) == (
      f"The run in '{tmp_path}' stopped after round 6: 3 rounds in a row were "
      'non-finite, and `--config.training.max_non_finite_rounds` is '
      f"{limit}. The last good checkpoint is '{tmp_path}/checkpoints/"
      "round_00000002'. Lower `--config.server.learning_rate` or "
      '`--config.client_work.learning_rate` in a new --workdir, or raise that '
      'limit to go on.'
    )

  def test_a_finite_round_ends_the_count(self, tmp_path):
    history = self._history(tmp_path, {1, 2, 4, 5}, last_round=5, limit=3)
    history.require_not_diverged()
    assert history.num_in_a_row == 2

  def test_lines(self, tmp_path):
    history = divergence.RoundHistory(tmp_path, 10)
    row = _row(7, num_non_finite_clients=2, num_overflowing_clients=1)
    row |= {'train/num_empty_clients': 1}
    history.add(row)
    assert history.line(row) == (
      'Round 7: non-finite, 3 of 4 clients have no finite update; the model '
      'stays as it was (1 in a row, the run stops at 10).'
    )
    history = divergence.RoundHistory(tmp_path, 0)
    row = _row(8, update_is_non_finite=1)
    history.add(row)
    assert history.line(row) == (
      'Round 8: non-finite, the mean of the clients is no finite update; the '
      'model stays as it was (1 in a row).'
    )


@pytest.mark.parametrize('files', [(), ('config.json',)])
def test_what_is_no_run_has_not_diverged(tmp_path, files):
  for name in files:
    (tmp_path / name).write_text('{')
  assert divergence.diverged_checkpoint(tmp_path) is None
  assert divergence.diverged_checkpoint(tmp_path / 'nothing') is None


@pytest.fixture(scope='module')
def train(small_inputs):
  return lambda workdir, *options, **settings: small_runs.train(
    small_inputs, workdir, *options, **(_DIVERGING | settings)
  )


@pytest.mark.slow
def test_stops_and_counts_on_when_resumed(train, tmp_path, capsys, monkeypatch):
  workdir = tmp_path / 'run'
  settings = dict(checkpoints__keep_last=1)
  # Rounds 2 and 3, fewer than the limit: it ends, but says how.
  limit = dict(training__max_non_finite_rounds=3)
  assert train(workdir, **settings, **limit, training__num_rounds=3) == 0
  errors = capsys.readouterr().err
  line = (
    'Round {}: non-finite, 3 of 3 clients have no finite update; the model '
    'stays as it was ({} in a row, the run stops at 3).\n'
  )
  assert line.format(2, 1) in errors and line.format(3, 2) in errors
  assert 'round 2/3, loss -' in errors and 'round 3/3, loss -' in errors
  good = workdir / 'checkpoints' / 'round_00000000'
  assert errors.endswith(
    'fedfish: warning: the run ended with 2 non-finite rounds in a row; the '
    f"last good checkpoint is '{good}'.\n"
  )
  # Round 4 is the third.
  limit['training__num_rounds'] = 7
  assert train(workdir, **settings, **limit) == 1
  errors = capsys.readouterr().err
  assert line.format(4, 3) in errors
  last_line = errors.splitlines()[-1]
  assert last_line.startswith(
    f"fedfish: failed: The run in '{workdir}' stopped after round 4: 3 rounds "
  )
  assert f"The last good checkpoint is '{good}'." in last_line
  # Beside the last one those that it must not push out.
  assert checkpoints.list_rounds(workdir / 'checkpoints') == [0, 1, 4]
  assert divergence.diverged_checkpoint(workdir) == good
  # A dry run says it, too, and no model is built for that.
  with monkeypatch.context() as patch:
    patch.delattr(build, 'build_learning_process')
    assert train(workdir, **settings, **limit) == 1
    assert capsys.readouterr().err == last_line + '\n'
    assert train(workdir, '--dry_run', **settings, **limit) == 1
    assert capsys.readouterr().err == last_line + '\n'
  # A higher limit, then none.
  limit['training__max_non_finite_rounds'] = 4
  assert train(workdir, **settings, **limit) == 1
  assert 'stopped after round 5: 4 rounds' in capsys.readouterr().err
  limit['training__max_non_finite_rounds'] = 0
  assert train(workdir, **settings, **limit) == 0
  # It is over, and ends in non-finite rounds.
  assert divergence.diverged_checkpoint(workdir) == good
  # All that equals a run that was left alone.
  whole = tmp_path / 'whole'
  assert train(whole, **settings, **limit) == 0
  for name in ('metrics.csv', 'checkpoints/round_00000007/state.safetensors'):
    assert (workdir / name).read_bytes() == (whole / name).read_bytes()
  assert checkpoints.list_rounds(whole / 'checkpoints') == [0, 1, 7]


def test_a_loss_above_guessing(train, tmp_path, capsys):
  settings = dict(client_work__optimizer='adamw', server__learning_rate=1)
  assert train(tmp_path / 'run', client_work__learning_rate=3, **settings) == 0
  warnings = [
    line
    for line in capsys.readouterr().err.splitlines()
    if line.startswith('fedfish: warning: the training loss')
  ]
  # ln 256 = 5.545.
  assert len(warnings) == 1
  assert 'is above that of guessing (5.55) after round 3.' in warnings[0]
  assert 'client_work.learning_rate 3 of adamw' in warnings[0]


@pytest.mark.slow
def test_the_last_round_may_be_the_one_too_many(train, tmp_path, capsys):
  settings = dict(training__num_rounds=3, training__max_non_finite_rounds=2)
  for _ in range(2):
    assert train(tmp_path / 'run', **settings) == 1
    assert 'stopped after round 3: 2 rounds' in capsys.readouterr().err
  # Finished, where that is no limit.
  settings['training__max_non_finite_rounds'] = 3
  assert train(tmp_path / 'run', **settings) == 0
  assert 'is finished' in capsys.readouterr().err


@pytest.mark.slow
def test_evaluation_of_a_diverged_model(train, small_inputs, tmp_path, capsys):
  workdir = tmp_path / 'run'
  assert train(workdir, training__num_rounds=2) == 0
  rows = tables.read_metrics(workdir / 'metrics.csv')
  assert rows[-1]['train/loss'] is None
  capsys.readouterr()
  command = ['evaluate', '--data', str(small_inputs[0]), '--fractions', '0']
  command += ['--max_clients', '2', '--output', str(tmp_path / 'out')]
  last = workdir / 'checkpoints' / 'round_00000002'
  good = workdir / 'checkpoints' / 'round_00000000'
  assert main([*command, '--checkpoint', str(last), '--barrier']) == 0
  output = capsys.readouterr()
  sentence = (
    f"fedfish: warning: no client has a finite loss with the model in '{last}'."
  )
  assert output.err.splitlines()[-1] == (
    f"{sentence} The last good checkpoint of its run is '{good}'."
  )
  assert '- nats per target (3 clients)' in output.out
  # The run stands for the good one, whose losses are finite.
  command[-1] = str(tmp_path / 'of_run')
  assert main([*command, '--checkpoint', str(workdir)]) == 0
  errors = capsys.readouterr().err
  assert 'takes its last good checkpoint, round_00000000.' in errors
  assert 'warning' not in errors
  summary = json.loads((tmp_path / 'of_run' / 'summary.json').read_text())
  assert summary['checkpoint'] == {'round': 0}
  # Without metrics.csv nothing is known of a good one.
  (workdir / 'metrics.csv').unlink()
  command[-1] = str(tmp_path / 'again')
  assert main([*command, '--checkpoint', str(last)]) == 0
  assert capsys.readouterr().err.splitlines()[-1] == sentence
