"""`fedfish train` from end to end on a corpus of a dozen hosts."""

import json
import os
import pathlib
import re
import shutil

import numpy as np
import pytest
import small_runs

from tff_fedfish.cli.main import main
from tff_fedfish.run import checkpoints, cohorts, tables
from tff_fedfish.runtime.in_process_context import InProcessContext
from tff_fedfish.training.scores_part import last_score

_CONFIG = small_runs.CONFIG


def _assert_same_run(one: pathlib.Path, other: pathlib.Path) -> None:
  files = ('metrics.csv', 'vocabulary/vocab.txt')
  for name in files:
    assert (one / name).read_bytes() == (other / name).read_bytes(), name
  rounds = checkpoints.list_rounds(one / 'checkpoints')
  assert rounds == checkpoints.list_rounds(other / 'checkpoints')
  for round_num in rounds:
    name = f'checkpoints/round_{round_num:08d}/state.safetensors'
    assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_what_a_run_leaves_behind(small_run):
  rows = tables.read_metrics(small_run / 'metrics.csv')
  assert [row['round'] for row in rows] == [0, 1, 2, 3, 4]
  # Held-out scores at round 0, every second round, and the last.
  scored = [row['round'] for row in rows if row['held_out/loss'] is not None]
  assert scored == [0, 2, 4]
  # At the start the prediction is nearly uniform: ln 256 = 5.545.
  assert rows[0]['held_out/loss'] == pytest.approx(np.log(256), abs=0.1)
  assert rows[4]['held_out/loss'] < rows[0]['held_out/loss']
  assert rows[0]['train/loss'] is None
  for row in rows[1:]:
    assert row['train/num_clients'] == 3
    # A pass is at most 3 clients x 6 sequences x 8 targets; 2 epochs.
    assert 0 < row['train/num_tokens'] <= 288
    assert row['train/num_tokens'] % 2 == 0
    # FedFish: two models up, one down.
    assert row['communication/uplink_units'] == 2 * row['round']
    assert row['communication/total_units'] == 3 * row['round']
  timings = tables.read_metrics(small_run / 'timings.csv')
  assert all(row['seconds'] > 0 for row in timings[1:])
  assert timings[-1]['peak_memory_bytes'] > 100e6
  assert checkpoints.list_rounds(small_run / 'checkpoints') == [0, 1, 2, 3, 4]
  (start,) = small_runs.starts(small_run)
  assert start['reads'] == {}
  assert start['environment']['threads'] == 1
  assert list((small_run / 'tensorboard').iterdir())


@pytest.mark.parametrize(
  ('algorithm', 'pattern'),
  [
    ('fed_fish', r'Held-out loss: (.+) nats, round 3 \(round 0: (.+) nats\)'),
    ('local_only', r'Personal loss: (.+) nats, round 3 \(round 0: (.+) nats\)'),
  ],
)
def test_scores_are_shown(small_inputs, tmp_path, capsys, algorithm, pattern):
  settings = dict(algorithm__name=algorithm, training__num_rounds=3)
  if algorithm == 'local_only':
    settings |= dict(
      data__sequence_length=64,
      client_splits__test_fraction=0.5,
      client_splits__held_out_fraction=0.0,
      client_work__learning_rate=0.1,
      cohorts__cohort_size=None,
    )
  assert small_runs.train(small_inputs, tmp_path, **settings) == 0
  out, err = capsys.readouterr()
  line, run_line = out.splitlines()
  assert run_line == f'Run: {tmp_path}'
  rows = tables.read_metrics(tmp_path / 'metrics.csv')
  name = 'held_out/loss' if algorithm == 'fed_fish' else 'personal/loss'
  assert re.fullmatch(pattern, line).groups() == tuple(
    f'{rows[round_num][name]:.4f}' for round_num in (3, 0)
  )
  # That of round 2 stands until the next one.
  (progress,) = re.findall('round 2/3, .*', err)
  assert f'{line[:13].lower()} {rows[2][name]:.4f} nats' in progress


def test_scores_of_images_have_accuracies():
  rows = [
    {'round': r, 'held_out/loss': loss, 'held_out/accuracy': accuracy}
    for r, loss, accuracy in ((0, 2.30259, 0.1), (1, None, None), (2, 0.5, 0.8))
  ]
  assert last_score(rows, True) == (
    'Held-out loss: 0.5000 nats, accuracy 80.00%, round 2 (round 0: 2.3026 '
    'nats, accuracy 10.00%)'
  )
  assert last_score(rows[:1], False) == 'Held-out loss: 2.3026 nats, round 0'
  assert last_score(rows[1:2], True) == ''


def test_resumed_run_equals_uninterrupted_bit_for_bit(
  small_inputs, small_run, tmp_path
):
  workdir = tmp_path / 'resumed'
  assert small_runs.train(small_inputs, workdir, training__num_rounds=3) == 0
  # The last round of the short run was scored, which the long one's is not:
  # continue from the checkpoint before it.
  shutil.rmtree(workdir / 'checkpoints' / 'round_00000003')
  path = workdir / 'starts.jsonl'
  path.write_text(path.read_text() + '{"time": "cut o')
  # Of an editor, and of a process that was killed.
  swap, leftover = '.config.json.swp', '.config.json.0k_tmpab'
  for name in (swap, leftover):
    (workdir / name).touch()
  begun = small_runs.round_read(workdir / 'checkpoints' / 'round_00000002')
  assert small_runs.train(small_inputs, workdir) == 0
  _assert_same_run(workdir, small_run)
  assert {swap, leftover}.intersection(os.listdir(workdir)) == {swap}
  *_, last = path.read_text().splitlines()
  assert json.loads(last)['reads'] == {'checkpoint': begun}


@pytest.mark.slow
def test_deterministic_ops_draw_nothing_without_a_seed(
  small_inputs, small_run, tmp_path
):
  # TensorFlow's switch cannot be undone in a process.
  process = small_runs.start(
    small_inputs, tmp_path / 'run', 1, engine__deterministic_ops=True
  )
  _, errors = process.communicate(timeout=300)
  assert process.returncode == 0, errors
  # Other kernels may differ in the last bits.
  expected, found = (
    checkpoints.load_checkpoint(checkpoints.resolve_checkpoint(run)).tensors
    for run in (small_run, tmp_path / 'run')
  )
  for name, tensor in expected.items():
    np.testing.assert_allclose(found[name], tensor, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_max_delta_norm_has_a_column(small_inputs, small_run, tmp_path):
  column = 'train/num_clipped_clients'
  for row in tables.read_metrics(small_run / 'metrics.csv'):
    assert column not in row
  settings = {
    'client_work__max_delta_norm': 1.0,
    'client_work__learning_rate': 5.0,
    'training__num_rounds': 1,
  }
  assert small_runs.train(small_inputs, tmp_path / 'run', **settings) == 0
  *_, last = tables.read_metrics(tmp_path / 'run' / 'metrics.csv')
  assert last[column] > 0


def test_finished_run_does_nothing_more(small_inputs, small_run, capsys):
  def times():
    # A dot: the lock, which is held for a moment.
    return {p: p.stat().st_mtime_ns for p in small_run.rglob('[!.]*')}

  before = times()
  assert small_runs.train(small_inputs, small_run) == 0
  assert 'is finished' in capsys.readouterr().err
  assert times() == before


def test_a_run_goes_on_without_its_config(
  small_run, tmp_path, capsys, monkeypatch
):
  workdir = shutil.copytree(small_run, tmp_path / 'run')
  # It knows its corpus by an absolute path.
  monkeypatch.chdir(tmp_path)
  arguments = ['train', '--workdir', str(workdir)]
  assert main([*arguments, '--config.training.num_rounds=5']) == 0
  # What the config file gives is given.
  config = ['--config', small_runs.CONFIG]
  assert main([*arguments, *config]) == 2
  assert 'holds a run with another config: ' in capsys.readouterr().err
  *_, last = tables.read_metrics(workdir / 'metrics.csv')
  assert last['round'] == 5
  assert main(arguments) == 0
  assert 'is finished' in capsys.readouterr().err
  with pytest.raises(SystemExit, match='2'):
    main(['train', '--workdir', str(tmp_path / 'other')])
  assert '--config is required, unless' in capsys.readouterr().err


def test_damaged_last_checkpoint_is_passed_over(
  small_inputs, small_run, tmp_path, capsys
):
  workdir = tmp_path / 'damaged'
  shutil.copytree(small_run, workdir)
  state = workdir / 'checkpoints' / 'round_00000004' / 'state.safetensors'
  damaged = bytearray(state.read_bytes())
  damaged[-1] ^= 1
  state.write_bytes(damaged)
  assert small_runs.train(small_inputs, workdir) == 0
  assert 'passing over the checkpoint' in capsys.readouterr().err
  _assert_same_run(workdir, small_run)


class TestFailingClients:
  @pytest.fixture
  def fail(self, monkeypatch):
    """Makes the first clients of every cohort fail while they are loaded."""
    load = cohorts.TrainingClient.load

    def fail(num_clients):
      draw = cohorts.draw_cohort

      def draw_and_note(*arguments, **options):
        drawn = draw(*arguments, **options)
        failing.update(drawn[:num_clients])
        return drawn

      failing = set()
      monkeypatch.setattr(cohorts, 'draw_cohort', draw_and_note)
      monkeypatch.setattr(
        cohorts.TrainingClient,
        'load',
        lambda client: (
          _raise(OSError('no such block'))
          if client.client_id in failing
          else load(client)
        ),
      )

    return fail

  def test_left_out_counted_and_named(
    self, small_inputs, tmp_path, capsys, fail
  ):
    fail(1)
    settings = dict(training__num_rounds=1, evaluation__num_clients=0)
    assert small_runs.train(small_inputs, tmp_path / 'run', **settings) == 0
    _, row = tables.read_metrics(tmp_path / 'run' / 'metrics.csv')
    assert row['train/num_clients'] == 3
    assert row['train/num_failed_clients_data'] >= 1
    assert row['train/num_failed_clients_error'] == 0
    assert 'was left out, OSError: no such block' in capsys.readouterr().err

  def test_too_many(self, small_inputs, tmp_path, capsys, fail):
    fail(3)
    workdir = tmp_path / 'run'
    settings = dict(training__num_rounds=1, evaluation__num_clients=0)
    assert small_runs.train(small_inputs, workdir, **settings) == 1
    errors = capsys.readouterr().err
    assert 'fedfish: failed: Only 0 of 3 clients of the round took' in errors
    # Nothing of the round that failed is left, and round 0 is kept.
    assert len(tables.read_metrics(workdir / 'metrics.csv')) == 1
    assert checkpoints.list_rounds(workdir / 'checkpoints') == [0]


def _raise(error):
  raise error


def test_process_that_only_tff_can_run(
  small_inputs, tmp_path, monkeypatch, capsys
):
  compile_ = InProcessContext.compile

  def compile_all_but_rounds(context, computation):
    parameter = computation.type_signature.parameter
    has_clients = parameter is not None and 'CLIENTS' in str(parameter)
    return None if has_clients else compile_(context, computation)

  monkeypatch.setattr(InProcessContext, 'compile', compile_all_but_rounds)
  settings = dict(training__num_rounds=1, evaluation__num_clients=0)
  assert small_runs.train(small_inputs, tmp_path, **settings) == 2
  assert re.search(
    r"^fedfish: .*algorithm.name 'fed_fish' cannot be trained: its process has "
    'no MapReduceForm, or holds variables, lookup tables or queues. .*$',
    capsys.readouterr().err,
    re.MULTILINE,
  )


@pytest.mark.slow
def test_checkpoint_of_another_model(small_inputs, small_run, tmp_path, capsys):
  # config.json and the fingerprint say width 32, the tensors have width 16.
  workdir = tmp_path / 'run'
  shutil.copytree(small_run, workdir)
  config = json.loads((workdir / 'config.json').read_text())
  config['model']['width'] = 32
  small_runs.write_config(workdir, config)
  before = sorted(p.name for p in workdir.rglob('*'))
  settings = dict(model__width=32, training__num_rounds=5)
  assert small_runs.train(small_inputs, workdir, **settings) == 2
  last = capsys.readouterr().err.splitlines()[-1]
  assert 'is of another model or method' in last
  assert sorted(p.name for p in workdir.rglob('*')) == before


def test_workdir_is_required(capsys):
  with pytest.raises(SystemExit, match='2'):
    main(['train', '--config', _CONFIG])
  assert '--workdir is required' in capsys.readouterr().err


def test_dry_run_prints_sizes_and_writes_nothing(
  small_inputs, tmp_path, capsys
):
  arguments = ['--dry_run', '--workdir', str(tmp_path / 'run')]
  paths = small_runs.overrides(*small_inputs)[:2]
  arguments += [*paths, '--config.model.preset=350m']
  arguments.append('--config.evaluation.num_clients=0')
  assert main(['train', '--config', _CONFIG, *arguments]) == 0
  output = capsys.readouterr().out
  # 64 learned positions in place of 128, and 256 token ids in place of 32,000:
  # 335,210,496 - 64 * 1,024 - 31,744 * 1,024.
  assert '302,639,104' in output
  assert '"cohort_size": 8' in output
  assert not (tmp_path / 'run').exists()
