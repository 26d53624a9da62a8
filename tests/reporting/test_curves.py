"""Curves by the numbers that are handed to matplotlib."""

import json

import pytest

from tff_fedfish.evaluation import tables
from tff_fedfish.reporting import (
  curves,
  loading,
  repetitions,
)


def _data(figure):
  """Returns label-free [(x, y)] of every curve of a plot."""
  return [
    list(zip(*(map(float, line.get_data()[k]) for k in (0, 1)), strict=True))
    for line in figure.axes[0].get_lines()
  ]


@pytest.fixture
def sweep(tmp_path, write_sweep):
  """FedAvg and FedFish at E = 1 and 4 for 4 rounds, two seeds, pooled."""
  directories = write_sweep(
    tmp_path,
    {(a, e, 4): e for a in ('fed_avg', 'fed_fish') for e in (1, 4)},
    num_seeds=2,
  )
  return repetitions.pool_repetitions(loading.load_runs(directories))


def test_mean_over_seeds_and_its_band(sweep, drawn):
  figures = curves.learning_curves(sweep)
  axes = drawn['curve_held_out_loss'].axes[0]
  # E = 1: 8 - 1 and 8 - 1 - 0.1.
  assert _data(drawn['curve_held_out_loss'])[0] == [
    (0, 8.0),
    *[(r, pytest.approx(6.95)) for r in (1, 2, 3, 4)],
  ]
  edges = axes.collections[0].get_paths()[0].vertices
  at_3 = sorted({round(y, 6) for x, y in edges if x == 3})
  assert at_3 == [6.9, 7.0]
  [loss] = [f for f in figures if f.name == 'curve_held_out_loss']
  assert 'shaded from the lowest to the highest seed' in loss.caption


def test_against_local_epochs_and_units(sweep, drawn):
  curves.cost_curves(sweep)
  assert list(drawn) == [
    'communication_uplink',
    'communication_total',
    'communication_local_epochs',
  ]
  # Accuracy is r / 100 in round r. FedAvg, E = 4, then FedFish, E = 4.
  assert _data(drawn['communication_local_epochs'])[1][:3] == [
    (0, 0.0),
    (4, 1.0),
    (8, 2.0),
  ]
  assert _data(drawn['communication_uplink'])[3][1] == (2, 1.0)
  assert _data(drawn['communication_total'])[3][1] == (3, 1.0)


def test_equal_local_epochs_have_no_axis_of_their_own(pair, drawn):
  runs = loading.load_runs(pair)
  curves.cost_curves(runs)
  assert 'communication_local_epochs' not in drawn


@pytest.mark.parametrize(
  'rounds, step',
  [
    # The paper's: 1,500 / 15 = 100.
    (range(0, 1501, 10), 100),
    # 200 / 20 = 10 scores after the first: all.
    (range(0, 201, 20), 20),
    # 200 / 15 = 13.3: 20 is the next of 1, 2, 5, 10, ...
    (range(0, 201), 20),
    # Every 30 rounds, 480 of them: 16 scores are too many, so every second.
    (range(0, 481, 30), 60),
    # 7 and 10: 1 alone divides both.
    ([0, 7, 10], 1),
    ([0], 1),
  ],
)
def test_marks_are_at_a_fixed_step_of_rounds(rounds, step):
  assert curves.mark_step(list(rounds)) == step


def test_marks_that_are_not_all_there_are_not_promised(
  tmp_path, write_run, drawn
):
  # The last round is odd: 71 / 15 = 4.7, but round 5 has no score.
  losses = tuple(8.0 if r % 2 == 0 or r == 71 else None for r in range(72))
  runs = loading.load_runs([write_run(tmp_path / 'a', held_out_losses=losses)])
  [loss, *_] = curves.learning_curves(runs)
  assert drawn['curve_held_out_loss']
  assert 'Marks' not in loss.caption


def test_marks_are_where_the_step_says(tmp_path, write_run, drawn):
  runs = loading.load_runs(
    [write_run(tmp_path / 'run', held_out_losses=(8.0,) * 31)]
  )
  [loss, *_] = curves.learning_curves(runs)
  [line] = drawn['curve_held_out_loss'].axes[0].get_lines()
  # 30 / 15 = 2.
  assert line.get_markevery() == list(range(0, 31, 2))
  assert 'Marks: every 2 rounds.' in loss.caption


def test_personalized_accuracy_of_checkpoints(
  tmp_path, write_run, write_evaluation, drawn
):
  run = write_run(
    tmp_path / 'run', held_out_losses=(8.0,) * 5, units_per_round=2
  )
  for round_num, loss in ((2, 6.0), (4, 5.0)):
    write_evaluation(
      run,
      f'e{round_num}',
      round_num=round_num,
      losses={0.0: (9.0,) * 4, 0.25: (8.0,) * 4, 0.5: (loss,) * 4},
    )
  runs = loading.load_runs([run])
  curves.learning_curves(runs)
  # (10 - 6) / 100 and (10 - 5) / 100 after half of the data.
  points = [(2, pytest.approx(4.0)), (4, pytest.approx(5.0))]
  assert _data(drawn['curve_personalized_accuracy']) == [points]
  curves.cost_curves(runs)
  points = [(4, pytest.approx(4.0)), (8, pytest.approx(5.0))]
  assert _data(drawn['communication_personalized_uplink']) == [points]


def test_one_evaluation_is_no_curve(pair, drawn):
  runs = loading.load_runs(pair)
  curves.learning_curves(runs)
  assert not any('personalized' in name for name in drawn)


def test_barrier_measured_in_training(tmp_path, write_run, drawn):
  directory = write_run(tmp_path / 'run')
  lines = (directory / 'metrics.csv').read_text().splitlines()
  cells = ('barrier/loss,barrier/error', ',', '0.5,0.02', '0.25,-0.01')
  (directory / 'metrics.csv').write_text(
    ''.join(f'{a},{b}\n' for a, b in zip(lines, cells, strict=True))
  )
  runs = loading.load_runs([directory])
  figures = curves.barrier_curves(runs)
  assert _data(drawn['barrier_loss_by_round']) == [[(1, 0.5), (2, 0.25)]]
  assert _data(drawn['barrier_error_by_round']) == [[(1, 2.0), (2, -1.0)]]
  assert '2.0 points at round 1, -1.0 points' in figures[1].alternative_text


def test_barrier_files_of_finished_rounds_are_read(tmp_path, write_run):
  directory = write_run(tmp_path / 'run')
  (directory / 'barrier').mkdir()
  for round_num in (1, 2, 3):
    tables.write_barriers(
      directory / 'barrier' / f'round_{round_num:08d}.csv',
      [
        tables.ClientBarrier(
          client_id=client_id,
          local_loss=5.0,
          global_loss=loss,
          local_accuracy=0.2,
          global_accuracy=0.1,
        )
        for client_id, loss in ((b'a', 5.0 + round_num), (b'b', float('nan')))
      ],
    )
  [run] = loading.load_runs([directory])
  # Round 3 has no row yet, and client b no finite loss.
  found = run.barriers_by_round()
  assert {r: list(v['global_loss']) for r, v in found.items()} == {
    1: [6.0],
    2: [7.0],
  }


def test_images_are_no_tokens(tmp_path, write_run, drawn):
  directory = write_run(
    tmp_path / 'run',
    settings={
      'data.corpus': 'mnist_by_writer',
      'data.sequence_length': None,
    },
  )
  runs = loading.load_runs([directory])
  curves.learning_curves(runs)
  labels = {n: f.axes[0].get_ylabel() for n, f in drawn.items()}
  assert labels['curve_held_out_loss'] == 'Held-out loss (nats per image)'
  assert labels['curve_held_out_accuracy'] == 'Held-out accuracy (%)'
  config = json.loads((directory / 'config.json').read_text())
  assert 'sequence_length' not in config['data']
