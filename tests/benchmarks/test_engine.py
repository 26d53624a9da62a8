"""The parts of `make bench-engine` that can be right or wrong."""

import argparse
import json
import os
import subprocess
import sys
import time

import pytest
import worker_processes
from benchmarks import engine, engine_figures, engine_parts, engine_processes
from benchmarks.engine_figures import Goal
from benchmarks.engine_settings import STOCK, Workload
from benchmarks.shared import ENVIRONMENT

# Sizes of which no two are equal.
_SMALLEST = Workload(
  preset='tiny',
  num_clients=3,
  num_local_steps=2,
  num_local_epochs=2,
  local_batch_size=5,
  sequence_length=16,
)


def test_figures_by_hand(capsys):
  # Medians: 6 / 4 = 1.5. Turns: 2 / 4, 6 / 3 and 9 / 10.
  figure = engine_figures.ratio('a / b', [2, 6, 9], [4, 3, 10], Goal(1.5))
  assert (figure.middle, figure.values) == (1.5, (0.5, 2.0, 0.9))
  figures = [
    figure,
    # The median is below 3, although one turn is above.
    engine_figures.measured('ours', [1, 9, 2], 'x', Goal(3), 'a remark'),
    engine_figures.measured('time', [10], 's', Goal(10, is_at_least=False)),
    engine_figures.measured('rate', [1234.5, 99.96, 200], 'tokens/s'),
    engine_figures.absent('no such thing'),
  ]
  verdicts = [figure.verdict for figure in figures]
  assert verdicts == ['met', 'short', 'met', '', '']
  engine_figures.print_figures(figures)
  text = capsys.readouterr().out
  assert '2 of 3 goals met; short: ours' in text
  assert all(number in text for number in ('100.0', '1,234', '>= 3', '<= 10'))
  # 4 is planned: 5 is 25 % more, and 3.2 is 4 / 1.25.
  assert engine_parts.factor(4, [5, 3.2]) == [1.25, 1.25]


def test_plan_is_of_the_workload():
  from benchmarks import engine_subjects

  from tff_fedfish.planning import plan as planning

  config = engine_subjects.train_config(_SMALLEST)
  planned = planning.plan_round(config, timing=False)
  # 5 rows of 16 tokens, 2 steps of them, 2 epochs, 3 clients.
  assert planned.tokens_per_round == _SMALLEST.num_tokens == 80 * 2 * 2 * 3
  assert config.transformer_config() == _SMALLEST.transformer_config()


def test_parts_are_named_once():
  assert engine.parse_parts('build,quick,build') == ('build', 'rounds')
  assert 'build_large' not in engine.parse_parts('default')
  assert engine.parse_parts('all') == tuple(engine.PARTS)
  with pytest.raises(
    argparse.ArgumentTypeError, match="'roundz' is no part; there are default,"
  ):
    engine.parse_parts('rounds,roundz')


def test_missed_goal_fails_nothing_but_a_failed_part_does(
  tmp_path, monkeypatch, capsys
):
  def slow(settings):
    assert settings.stock_repeats == 4 < settings.repeats
    return [engine_figures.measured('ours', [1], 'x', Goal(2))]

  def broken(settings):
    raise RuntimeError('what is wrong')

  monkeypatch.setattr(engine, 'PARTS', {'rounds': slow, 'build': broken})
  output = tmp_path / 'figures.json'
  options = ['--repeats', '9', '--output', str(output), '--parts']
  assert engine.main([*options, 'rounds']) == 0
  assert '0 of 1 goals met; short: ours' in capsys.readouterr().out
  # What comes after a failure is measured all the same.
  assert engine.main([*options, 'build,rounds']) == 1
  assert 'FAILED: build: what is wrong' in capsys.readouterr().out
  found = json.loads(output.read_text())
  assert found['problems'] == ['build: what is wrong']
  (figure,) = found['figures']
  assert (figure['part'], figure['values'], figure['verdict']) == (
    'rounds',
    [1],
    'short',
  )


@pytest.mark.benchmark
def test_stock_runs_few_rounds_and_leaves_nothing_behind():
  options = {'engine': STOCK, 'workload': _SMALLEST}
  with engine_processes.MeasuredProcess('Rounds', 2, **options) as process:
    turn = process.turn()
    assert 0 < turn['worker_bytes'] < turn['resident_bytes']
    assert worker_processes.below(os.getpid())
    with pytest.raises(RuntimeError, match='may run 5 rounds, .* but 6 are'):
      process.turn(num_rounds=5)
  deadline = time.monotonic() + 10
  while worker_processes.below(os.getpid()) and time.monotonic() < deadline:
    time.sleep(0.1)
  assert not worker_processes.below(os.getpid())


@pytest.mark.benchmark
def test_quick_benchmark():
  # Not in this process, whose memory would count for the jobs'.
  command = ['-m', 'benchmarks.engine', '--parts', 'quick', '--repeats', '1']
  subprocess.run([sys.executable, *command], check=True, env=ENVIRONMENT)
