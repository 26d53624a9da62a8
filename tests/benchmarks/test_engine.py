"""The parts of `make bench-engine` that can be right or wrong."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
import worker_processes
from benchmarks import (
  engine,
  engine_figures,
  engine_flops,
  engine_plan,
  engine_processes,
  engine_profile,
)
from benchmarks.engine_figures import Goal
from benchmarks.engine_settings import STOCK, Workload

from tff_fedfish.planning import plan as planning

_TESTS = pathlib.Path(__file__).parents[1]
# Sizes of which no two are equal.
_SMALLEST = Workload(
  preset='tiny',
  num_clients=3,
  num_local_steps=2,
  num_local_epochs=2,
  local_batch_size=5,
  sequence_length=16,
)


def test_ratio_by_hand():
  # Medians: 6 / 4 = 1.5. Turns: 2 / 4, 6 / 3 and 9 / 10.
  figure = engine_figures.ratio('rounds', 'a / b', [2, 6, 9], [4, 3, 10])
  assert figure.middle == 1.5
  assert figure.values == (0.5, 2.0, 0.9)
  with pytest.raises(ValueError, match='shorter'):
    engine_figures.ratio('rounds', 'a / b', [2, 6, 9], [4, 3])


def test_goals_are_held_against_the_middle():
  at_least = Goal(0.95)
  assert [at_least.verdict(value) for value in (0.9499, 0.95, 2)] == [
    'short',
    'met',
    'met',
  ]
  at_most = Goal(1.02, is_at_least=False)
  assert [at_most.verdict(value) for value in (0.5, 1.02, 1.0201)] == [
    'met',
    'met',
    'short',
  ]
  # The median of 1, 9 and 2 is below 3, although one turn is above.
  figure = engine_figures.measured('a', 'b', [1, 9, 2], 's', Goal(3))
  assert figure.verdict == 'short'
  assert engine_figures.measured('a', 'b', [1], 's').verdict == ''


def test_table():
  figures = [
    engine_figures.measured('rounds', 'ours', [1234.5, 99.96, 200], 'tokens/s'),
    engine_figures.ratio('rounds', 'ratio', [3], [4], Goal(0.95), 'a remark'),
    engine_figures.measured('build', 'time', [9], 's', Goal(10, False)),
    engine_figures.absent('flops', 'bfloat16', 'no such thing'),
  ]
  heading, *lines = engine_figures.format_table(figures).splitlines()
  fields = ['part', 'figure', 'min', 'median', 'max', 'unit', 'goal', 'note']
  assert heading.split() == fields
  assert [line.split() for line in lines] == [
    ['rounds', 'ours', '100.0', '200', '1,234', 'tokens/s'],
    ['rounds', 'ratio', *['0.750'] * 3, 'x']
    + ['>=', '0.95', 'short', 'a', 'remark'],
    ['build', 'time', *['9.000'] * 3, 's', '<=', '10', 'met'],
    ['flops', 'bfloat16', 'not', 'measured:', 'no', 'such', 'thing'],
  ]
  # Numbers end where their headings do.
  assert lines[0].index('200') + 3 == heading.index('median') + 6
  assert (
    engine_figures.format_summary(figures) == '1 of 2 goals met; short: ratio'
  )


def test_flops_of_a_step_by_hand():
  # tiny has 4 layers of width 128 and 2,048 token ids; 5 rows of 16 tokens.
  # Forward: layers 4 * 24 * 80 * 128^2 = 125,829,120, attention
  # 4 * 4 * 5 * 128 * 16^2 = 2,621,440, logits 2 * 80 * 128 * 2048 = 41,943,040.
  # Backward: twice, 2.5 times (scores are formed again), and twice as much.
  # 3 * 125,829,120 + 3.5 * 2,621,440 + 3 * 41,943,040 = 512,491,520.
  assert engine_flops.step_flops(_SMALLEST) == 512_491_520


def test_plan_is_of_the_workload():
  config = engine_plan.train_config(_SMALLEST)
  planned = planning.plan_round(config, timing=False)
  assert planned.tokens_per_round == _SMALLEST.num_tokens
  assert config.transformer_config() == _SMALLEST.transformer_config()
  # 4 is planned: 5 is 25 % more, and 3.2 is 4 / 1.25.
  assert engine_plan.factor(4, [5, 3.2]) == [1.25, 1.25]


def test_workload_counts_tokens():
  # 5 rows of 16 tokens, 2 steps of them, 2 epochs, 3 clients.
  assert _SMALLEST.tokens_per_step == 80
  assert _SMALLEST.num_tokens == 80 * 2 * 2 * 3


def test_order_of_turns_alternates():
  turns = [list(engine_processes.alternating(['a', 'b'], i)) for i in range(3)]
  assert turns == [['a', 'b'], ['b', 'a'], ['a', 'b']]


def test_parts_are_named_once():
  assert engine.parse_parts('build,quick,build') == ('build', 'rounds', 'input')
  assert 'bf16_loss' not in engine.parse_parts('default')
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
    return [engine_figures.measured('rounds', 'ours', [1], 'x', Goal(2))]

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
  assert found['figures'] == [
    {
      'part': 'rounds',
      'name': 'ours',
      'unit': 'x',
      'min': 1,
      'median': 1,
      'max': 1,
      'values': [1],
      'goal': '>= 2',
      'verdict': 'short',
      'note': '',
    }
  ]
  assert found['settings']['parts'] == ['build', 'rounds']
  assert isinstance(found['machine']['amx_bf16'], bool)


def test_nested_operations_count_once():
  # `While` runs 0 to 100 and holds `MatMul` 10 to 40, which holds `Cast` 20 to
  # 25, and `Add` 40 to 60; `Exp` comes after: 100 - 30 - 20, 30 - 5.
  events = [
    (40, 20, 'Add'),
    (0, 100, 'While'),
    (20, 5, 'Cast'),
    (10, 30, 'MatMul'),
    (100, 7, 'Exp'),
  ]
  assert sorted(engine_profile.own_durations(events)) == [
    ('Add', 20),
    ('Cast', 5),
    ('Exp', 7),
    ('MatMul', 25),
    ('While', 50),
  ]


def test_profile_sums_threads_and_leaves_out_what_is_no_operation():
  from tensorflow.tsl.profiler.protobuf import xplane_pb2

  space = xplane_pb2.XSpace()
  plane = space.planes.add(name='/host:CPU')
  for key, name in enumerate(
    ('a/b:MatMul', 'EagerExecute', 'EagerLocalExecute: f_1', 'Kernel::Run')
  ):
    plane.event_metadata[key].name = name
  for durations in ({0: 2, 1: 90}, {0: 3, 2: 90, 3: 90}):
    line = plane.lines.add()
    for start, (key, seconds) in enumerate(durations.items()):
      line.events.add(
        metadata_id=key,
        offset_ps=start * 10**14,
        duration_ps=seconds * 10**12,
      )
  assert engine_profile.operation_seconds(space) == {'MatMul': 5}
  by_kind = engine_profile.by_kind({'MatMul': 5, 'Einsum': 1, 'While': 2})
  assert by_kind['matrix products'] == 6
  assert by_kind[engine_profile.OTHER] == 2


def test_process_that_ends_early_says_why():
  with pytest.raises(
    RuntimeError, match=r'(?s)process `nothing` ended early:.*invalid choice'
  ):
    engine_processes.MeasuredProcess('nothing', {}, num_threads=1)


@pytest.mark.benchmark
def test_plain_loop_computes_what_the_engine_does():
  import numpy as np
  from benchmarks.engine_rounds import FederatedRounds
  from benchmarks.plain_loop import PlainLoop

  plain, ours = PlainLoop(_SMALLEST), FederatedRounds('ours', _SMALLEST)
  before = [weight.numpy() for weight in plain.weights()]
  losses = [(plain.run_round(), ours.run_round()) for _ in range(2)]
  assert losses[0][0] > losses[1][0]
  for found, expected in losses:
    assert found == pytest.approx(expected, rel=1e-5)
  for start, found, expected in zip(
    before, plain.weights(), ours.weights(), strict=True
  ):
    # Adam moves every weight by about its learning rate of 1e-3 a round, also
    # where the gradient is little more than rounding: there the two may differ.
    difference = np.abs(found.numpy() - expected)
    moved = np.abs(found.numpy() - start)
    assert difference.mean() < 1e-3 * moved.mean()


@pytest.mark.benchmark
def test_stock_runs_few_rounds_and_leaves_nothing_behind():
  options = {'engine': STOCK, 'workload': _SMALLEST}
  with engine_processes.MeasuredProcess(
    'rounds', options, num_threads=2
  ) as process:
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
  paths = os.pathsep.join([str(_TESTS.parent), str(_TESTS)])
  subprocess.run(
    [sys.executable, *command],
    check=True,
    env=os.environ | {'PYTHONPATH': paths},
    stdin=subprocess.DEVNULL,
  )
