"""Final scores by local epochs, and the budgets that runs keep to."""

import dataclasses

import pytest

from tff_fedfish.reporting import (
  loading,
  local_epochs,
  match,
  repetitions,
)
from tff_fedfish.reporting.match import FIXED_COMPUTE, FIXED_ROUNDS


def _budgets(tmp_path, write_run, shapes):
  return match.find_budgets(
    loading.load_runs(
      [
        write_run(tmp_path / f'{e}-{r}', num_local_epochs=e, num_rounds=r)
        for e, r in shapes
      ]
    )
  )


@pytest.mark.parametrize(
  'shapes, expected',
  [
    # The paper's EMNIST: 4 x 1500 = 8 x 750 = 16 x 375.
    (
      [(4, 1500), (8, 1500), (8, 750), (16, 1500), (16, 375)],
      (1500, 4, (FIXED_COMPUTE, FIXED_ROUNDS)),
    ),
    # The reference is not the smallest: 1 x 480 = 4 x 120 = 16 x 30.
    (
      [(1, 120), (1, 480), (4, 120), (16, 120), (16, 30)],
      (120, 4, (FIXED_COMPUTE, FIXED_ROUNDS)),
    ),
    # Of equal ones the paper's reference, E = 4, then the fewest local epochs.
    ([(1, 20), (4, 20)], (20, 4, (FIXED_ROUNDS,))),
    ([(1, 20), (4, 5)], (5, 4, (FIXED_COMPUTE,))),
    ([(2, 20), (8, 20)], (20, 2, (FIXED_ROUNDS,))),
    ([(8, 20)], (20, 8, (FIXED_ROUNDS,))),
  ],
)
def test_budgets_of_runs(tmp_path, write_run, shapes, expected):
  found = _budgets(tmp_path, write_run, shapes)
  assert (found.num_rounds, found.local_epochs, found.names) == expected


def test_runs_that_do_not_say_their_rounds(tmp_path, write_run):
  [run] = loading.load_runs([write_run(tmp_path / 'run')])
  run = dataclasses.replace(run, config=run.config | {'training': {}})
  assert match.find_budgets([run]) is None


@pytest.fixture
def sweep(tmp_path, write_sweep):
  """E = 1 and 4 for 4 rounds, and E = 4 for 1: 4 local epochs, as E = 1."""
  gains = {
    (algorithm, epochs, rounds): epochs * rounds / 8 + (algorithm == 'fed_fish')
    for algorithm in ('fed_avg', 'fed_fish')
    for epochs, rounds in ((1, 4), (4, 4), (4, 1))
  }
  return repetitions.pool_repetitions(
    loading.load_runs(write_sweep(tmp_path, gains, num_seeds=2))
  )


def test_lines_by_hand(sweep, drawn):
  found = local_epochs.local_epoch_figures(sweep)
  assert list(drawn) == [
    'local_epochs_accuracy',
    'local_epochs_bars',
    'local_epochs_loss',
  ]
  overall, personalized = drawn['local_epochs_loss'].axes
  assert overall.get_xscale() == 'log'
  assert [t.get_text() for t in overall.get_xticklabels()] == ['1', '4']
  # FedAvg at fixed compute, then rounds; FedFish, likewise. Losses 8 - gain
  # - 0.05 over two seeds: 7.45 with 4 local epochs, 5.95 with 16.
  lines = [line for line in overall.get_lines() if len(line.get_xdata()) == 2]
  assert [list(line.get_ydata()) for line in lines] == [
    pytest.approx(y)
    for y in ((7.45, 7.45), (7.45, 5.95), (6.45, 6.45), (6.45, 4.95))
  ]
  [first, *_] = [
    line for line in personalized.get_lines() if len(line.get_xdata()) == 2
  ]
  assert list(first.get_ydata()) == pytest.approx([6.45, 6.45])
  assert personalized.get_title() == 'Personalized on 50 %'
  # Next to their place by at most some percent, so that whiskers are seen.
  assert list(first.get_xdata()) == pytest.approx([1, 4], rel=0.05)
  words = found[0].caption
  assert 'over clients and 2 seeds, crossed' in words
  assert 'Fixed compute: 4 local epochs in all. Fixed rounds: 4 each.' in words


def test_whiskers_are_the_crossed_intervals(sweep, drawn):
  local_epochs.local_epoch_figures(sweep)
  axes = drawn['local_epochs_loss'].axes[0]
  arms = axes.collections[0].get_segments()[0]
  # Seeds 7.5 and 7.4: each is drawn alone in a quarter of the resamples.
  assert sorted(y for _, y in arms) == pytest.approx([7.4, 7.5])


def test_bars_by_hand(sweep, drawn):
  [_, bars, _] = local_epochs.local_epoch_figures(sweep)
  heights = [
    patch.get_height() for patch in drawn['local_epochs_bars'].axes[0].patches
  ]
  # Fixed rounds alone; accuracies (10 - loss) %. FedAvg global at E = 1 and 4,
  # personalized, then FedFish.
  assert heights == pytest.approx(
    [2.55, 4.05, 3.55, 5.05, 3.55, 5.05, 4.55, 6.05]
  )
  assert bars.alternative_text.startswith(
    'Bar chart, global and personalized accuracy by local epochs. FedAvg, '
  )
  assert 'FedFish, personalized on 50 %: 4.5' in bars.alternative_text


def test_one_number_of_local_epochs_has_no_trend(pair, drawn):
  runs = loading.load_runs(pair)
  assert local_epochs.local_epoch_figures(runs) == []
  assert drawn == {}


def test_runs_in_progress_have_no_final_score(
  tmp_path, write_run, write_evaluation
):
  directories = []
  for epochs in (1, 4):
    run = write_run(
      tmp_path / str(epochs), num_local_epochs=epochs, num_rounds=9
    )
    write_evaluation(run, 'e', round_num=2)
    directories.append(run)
  runs = loading.load_runs(directories)
  assert local_epochs.local_epoch_figures(runs) == []
