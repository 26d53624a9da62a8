"""`engine.client_timeout_seconds`: who is dropped once is dropped again."""

import itertools
import json
import shutil
import types

import pytest
import small_runs

from tff_fedfish.cli.main import main
from tff_fedfish.run import checkpoints, metrics_files
from tff_fedfish.runtime import client_deadline

_SETTINGS = dict(
  # Clients have from 2 to 10 batches.
  client_work__max_sequences_per_client=None,
  client_work__local_batch_size=4,
  engine__quorum=0.0,
  evaluation__num_clients=0,
)
# Of the clock of these tests. Some clients take longer.
_LIMIT = 17.0


def _slow_clock(patch):
  """A second passes with every batch of a client."""
  ticks = itertools.count()
  patch.setattr(
    client_deadline,
    'time',
    types.SimpleNamespace(monotonic=lambda: float(next(ticks))),
  )


def _train(inputs, run, **settings):
  assert small_runs.train(inputs, run, **_SETTINGS | settings) == 0


def _forget_rounds_after(run, round_num):
  for found in checkpoints.list_rounds(run / 'checkpoints'):
    if found > round_num:
      shutil.rmtree(checkpoints.path_of(run / 'checkpoints', found))


def _files(run):
  paths = [run / 'metrics.csv', run / 'events.csv']
  paths += sorted(run.glob('checkpoints/*/state.safetensors'))
  return {str(path.relative_to(run)): path.read_bytes() for path in paths}


@pytest.fixture(scope='module')
def slow_run(small_inputs, tmp_path_factory):
  """A run some of whose clients were slow."""
  run = tmp_path_factory.mktemp('slow') / 'run'
  with pytest.MonkeyPatch.context() as patch:
    _slow_clock(patch)
    _train(small_inputs, run, engine__client_timeout_seconds=_LIMIT)
  return run


def test_dropped_clients_are_counted_and_named(slow_run):
  lines = (slow_run / 'events.csv').read_text('utf-8').splitlines()
  assert lines[0] == 'round,client_id,event'
  assert [n for n in lines if n.endswith('round_done')] == [
    f'{n},,round_done' for n in (1, 2, 3, 4)
  ]
  for row in metrics_files.read_metrics(slow_run / 'metrics.csv')[1:]:
    number = f'{row["round"]},'
    dropped = [
      line
      for line in lines
      if line.startswith(number) and line.endswith('.org,client_timeout')
    ]
    assert row['train/num_failed_clients_error'] == len(dropped)
    assert row['train/num_failed_clients_data'] == 0
  assert len(lines) > 1 + 4


def test_resumed_run_drops_the_same(slow_run, small_inputs, tmp_path, capsys):
  expected = _files(slow_run)
  for name, settings in (
    # The machine is fast now, and has a limit or none.
    ('limit', dict(engine__client_timeout_seconds=_LIMIT)),
    ('none', {}),
  ):
    run = tmp_path / name
    shutil.copytree(slow_run, run)
    _forget_rounds_after(run, 1)
    _train(small_inputs, run, **settings)
    assert _files(run) == expected
  assert 'left out, ' in capsys.readouterr().err


def test_resumed_run_drops_nobody_else(small_inputs, tmp_path, monkeypatch):
  run = tmp_path / 'run'
  settings = dict(engine__client_timeout_seconds=1000.0)
  _train(small_inputs, run, **settings)
  expected = _files(run)
  assert b'client_timeout' not in expected['events.csv']
  _forget_rounds_after(run, 2)
  # Everybody would be too slow.
  _slow_clock(monkeypatch)
  _train(small_inputs, run, engine__client_timeout_seconds=0.5)
  assert _files(run) == expected


def test_run_that_began_without_a_limit(small_inputs, tmp_path, monkeypatch):
  run = tmp_path / 'run'
  _train(small_inputs, run, training__num_rounds=2)
  assert not (run / 'events.csv').exists()
  # As written before there was the setting.
  config = json.loads((run / 'config.json').read_text('utf-8'))
  del config['engine']['client_timeout_seconds']
  (run / 'config.json').write_text(json.dumps(config), 'utf-8')
  _slow_clock(monkeypatch)
  settings = dict(engine__client_timeout_seconds=_LIMIT)
  _train(small_inputs, run, training__num_rounds=4, **settings)
  text = (run / 'events.csv').read_text('utf-8')
  assert text.startswith('round,client_id,event\n2,,round_done\n')
  assert text.endswith('\n4,,round_done\n')
  expected = _files(run)
  # Nobody is dropped in round 2, which had no limit.
  _forget_rounds_after(run, 1)
  _train(small_inputs, run, training__num_rounds=4, **settings)
  assert _files(run) == expected


def test_damaged_events(slow_run, small_inputs, tmp_path, capsys):
  run = tmp_path / 'run'
  shutil.copytree(slow_run, run)
  _forget_rounds_after(run, 1)
  (run / 'events.csv').write_text('round,client_id,event\n1,a,slept\n')
  arguments = ['train', '--config', small_runs.CONFIG, '--workdir', str(run)]
  arguments += small_runs.overrides(*small_inputs, **_SETTINGS)
  for more in ([], ['--dry_run']):
    assert main([*arguments, *more]) == 2
    assert 'events.csv' in (error := capsys.readouterr().err)
    assert 'but line 2 does not. Restore the file' in error
