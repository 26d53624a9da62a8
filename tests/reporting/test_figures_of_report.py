"""The tables that plots are drawn from; nothing is drawn here."""

import math

import pytest
from report_plots import plots_of, points
from report_runs import (
  add_metrics,
  write_methods,
  write_run,
  write_scored,
  write_sweep,
)

_LOSS = 'Loss (nats per token)'
_HELD_OUT = 'Held-out loss (nats per token)'


@pytest.fixture(name='of_pair', scope='module')
def _of_pair(pair):
  """Plots of FedAvg and FedFish, E = 8."""
  return plots_of(pair)


@pytest.fixture(name='of_sweep', scope='module')
def _of_sweep(tmp_path_factory):
  """E = 1 and 4 for 4 rounds, and E = 4 for 1: 4 local epochs, as E = 1."""
  gains = {
    (algorithm, epochs, rounds): epochs * rounds / 8 + (algorithm == 'fed_fish')
    for algorithm in ('fed_avg', 'fed_fish')
    for epochs, rounds in ((1, 4), (4, 4), (4, 1))
  }
  return plots_of(write_sweep(tmp_path_factory.mktemp('sweep'), gains))


def test_a_pair_has_all_that_a_pair_can_have(of_pair):
  assert list(of_pair) == [
    'differences',
    'held_out_scores',
    'held_out_before_after',
    'transfer_1_scores',
    'transfer_1_before_after',
    'curves',
    'cost',
  ]


def test_no_plot_without_values(tmp_path):
  directory = write_run(tmp_path / 'run')
  (directory / 'metrics.csv').write_text('round\n0\n')
  assert plots_of([directory]) == {}


class TestDifferences:
  def test_loss_and_accuracy_of_a_pair(self, of_pair):
    plot = of_pair['differences']
    assert plot.title == 'FedFish minus FedAvg'
    # Losses (5.5 - 6 + 6.5 - 7 + 5 - 5 + 6 - 6) / 4; accuracies are
    # (10 - loss) %.
    assert points(plot, 'panel', 'x', 'y') == [
      (_LOSS, 'FedFish − FedAvg', -0.25),
      ('Token accuracy (points)', 'FedFish − FedAvg', 0.25),
    ]
    assert plot.caption == (
      'Same settings, on held-out clients. Below 0 in loss and above 0 in '
      'accuracy the side named first is ahead. Whiskers: 95 % intervals over '
      'clients.'
    )

  def test_methods_and_settings(self, tmp_path):
    gains = {
      (name, epochs, 2): gain * epochs
      for name, gain in (('fed_avg', 1.0), ('fed_fish', 1.25), ('scaffold', 2))
      for epochs in (1, 2)
    }
    plot = plots_of(write_sweep(tmp_path, gains))['differences']
    assert plot.title == 'Methods minus FedAvg'
    # None is of FedFish and SCAFFOLD, and the axis has what the legend lacks.
    assert points(plot, 'x', 'series', 'y', panel=_LOSS) == [
      ('E = 1', 'FedFish', -0.25),
      ('E = 1', 'SCAFFOLD', -1.0),
      ('E = 2', 'FedFish', -0.5),
      ('E = 2', 'SCAFFOLD', -2.0),
    ]
    assert 'Whiskers: 95 % intervals over seeds and clients.' in plot.caption

  def test_two_seeds_without_the_baseline(self, tmp_path):
    gains = {('fed_prox', 1, 2): 1.0, ('fed_fish', 1, 2): 1.25}
    plot = plots_of(write_sweep(tmp_path, gains, num_seeds=2))['differences']
    assert points(plot, 'x', 'y', panel=_LOSS) == [('FedFish − FedProx', -0.25)]
    # They have no interval.
    assert plot.table['low'].isna().all()
    assert 'Whiskers' not in plot.caption

  def test_no_bar_where_one_side_lacks_a_client(self, tmp_path):
    losses = {
      'fed_avg': [(6.0, 5.0)] * 3,
      'fed_fish': [(5.0, math.nan)] * 3,
      'scaffold': [(5.5, 4.5)] * 3,
    }
    plot = plots_of(write_methods(tmp_path, losses))['differences']
    assert points(plot, 'x', 'y', panel=_LOSS) == [('SCAFFOLD − FedAvg', -0.5)]

  def test_no_figure_where_every_pair_lacks_a_client(self, tmp_path):
    losses = {'fed_avg': [(6.0, 5.0)] * 3, 'fed_fish': [(5.0, math.nan)] * 3}
    plots = plots_of(write_methods(tmp_path, losses))
    assert 'differences' not in plots
    # Nor has it a mean among the scores.
    series = {'FedAvg, E = 1'}
    assert set(plots['held_out_scores'].table['series']) == series


class TestScores:
  def test_fractions_are_numbers_in_order(self, tmp_path):
    losses = {0.5: (4.0,), 0.0: (6.0,), 0.05: (5.0,), 0.25: (4.5,)}
    plot = plots_of([write_scored(tmp_path / 'run', losses)])['held_out_scores']
    found = points(plot, 'x', 'y', panel=_LOSS)
    assert found == [(0.0, 6.0), (5.0, 5.0), (25.0, 4.5), (50.0, 4.0)]

  def test_intervals_and_words(self, of_pair):
    plot = of_pair['held_out_scores']
    where = {'series': 'FedAvg, E = 8', 'panel': _LOSS}
    # (6 + 7 + 5 + 6) / 4 and (5 + 6.5 + 5.5 + 4) / 4.
    [first, second] = points(plot, 'x', 'y', 'low', 'high', **where)
    assert (first[:2], second[:2]) == ((0, 6.0), (50, 5.25))
    # At most 1 away, times the scale of four clients, 1.8749.
    assert all(
      6 - 1.875 <= low < y < high <= 7.875 for _, y, low, high in [first]
    )
    assert 'Whiskers: 95 % intervals over clients.' in plot.caption
    words = 'Token accuracy (%): FedAvg, E = 8: 4.00 at 0, 4.75 at 50'
    assert words in plot.words

  @pytest.mark.parametrize(
    'name, value',
    [('split_seed', 9), ('max_sequences_per_client', 4), ('clients', 'de')],
  )
  def test_other_samples_have_panels_of_their_own(self, tmp_path, name, value):
    paths = [write_scored(tmp_path / 'a', 6.0, algorithm='fed_avg')]
    other = {'personalization': {name: value}}
    if name == 'clients':
      other = {'client_ids': tuple(value)}
    paths.append(write_scored(tmp_path / 'b', 5.0, evaluation=other))
    plot = plots_of(paths)['held_out_scores']
    assert points(plot, 'panel', 'series', 'y')[:2] == [
      (f'{_LOSS}, sample 1', 'FedAvg, E = 1', 6.0),
      (f'{_LOSS}, sample 2', 'FedFish, E = 1', 5.0),
    ]

  def test_clients_before_and_after(self, of_pair):
    plot = of_pair['held_out_before_after']
    assert points(plot, 'point', 'x', 'y', panel='FedAvg, E = 8') == [
      ('a.org', 6, 5),
      ('b.org', 7, 6.5),
      ('c.org', 5, 5.5),
      ('d.org', 6, 4),
    ]
    assert 'FedAvg, E = 8: 3 of 4 points below the diagonal' in plot.words

  def test_a_missing_client_stands_in_the_title(self, tmp_path):
    losses = {0.0: (6.0, 5.0), 0.5: (5.0, math.inf)}
    plots = plots_of([write_scored(tmp_path / 'run', losses)])
    plot = plots['held_out_before_after']
    assert plot.panel_names == ['FedFish, E = 1, 1 of 2 clients finite']
    assert points(plot, 'point', 'y') == [('a', 5.0)]

  def test_own_test_rows_have_no_fractions(self, tmp_path):
    run = write_scored(tmp_path / 'r', 3.0, evaluation={'kind': 'own_test'})
    plot = plots_of([run])['own_test_scores']
    assert (plot.x, points(plot, 'x', 'y')) == ('', [('', 3.0), ('', 7.0)])


class TestCurves:
  def test_by_round(self, of_pair):
    plot, where = of_pair['curves'], {'series': 'FedAvg, E = 8'}
    # Held-out losses as written; train losses are 9 - r, from round 1 on.
    loss, accuracy, train = plot.panel_names
    assert loss == _HELD_OUT
    found = points(plot, 'x', 'y', panel=loss, **where)
    assert found == [(0, 8.0), (1, 7.0), (2, 6.5)]
    # r / 100 in round r.
    assert points(plot, 'y', panel=accuracy, **where) == [(0,), (1,), (2,)]
    assert points(plot, 'x', 'y', panel=train, **where) == [(1, 8.0), (2, 7.0)]

  def test_rounds_without_a_finite_value_are_left_out(self, tmp_path):
    losses = (8.0, None, 7.0, math.nan)
    run = write_run(tmp_path / 'run', held_out_losses=losses)
    plot = plots_of([run])['curves']
    assert points(plot, 'x', 'y', panel=_HELD_OUT) == [(0, 8.0), (2, 7.0)]

  def test_runs_that_score_other_samples_share_the_train_loss_only(
    self, tmp_path
  ):
    paths = [
      write_run(tmp_path / name, algorithm=name, settings=settings)
      for name, settings in (
        ('fed_avg', {'evaluation.num_clients': 8}),
        ('fed_fish', {}),
      )
    ]
    plots = plots_of(paths)
    plot = plots['curves']
    series = plot.table.groupby('panel', sort=False)['series'].unique()
    accuracy = 'Held-out token accuracy (%)'
    average, fish = 'FedAvg, E = 1', 'FedFish, E = 1'
    assert {name: list(own) for name, own in series.items()} == {
      f'{_HELD_OUT}, training sample 1': [average],
      f'{_HELD_OUT}, training sample 2': [fish],
      f'{accuracy}, training sample 1': [average],
      f'{accuracy}, training sample 2': [fish],
      'Train loss (nats per token)': [average, fish],
    }
    assert len(plots['cost'].panel_names) == 4

  def test_over_seeds_they_have_a_band(self, of_sweep):
    plot = of_sweep['curves']
    where = {'panel': _HELD_OUT, 'x': 3, 'series': 'FedAvg, E = 1'}
    # 8 - 0.5 - (0, 0.1 and 0.2).
    assert points(plot, 'y', 'low', 'high', **where) == [(7.4, 7.3, 7.5)]
    assert 'shaded from the lowest to the highest seed' in plot.caption

  def test_loss_by_traffic(self, of_pair):
    plot = of_pair['cost']
    uplink, total = plot.panel_names
    # FedFish sends 2 units up in each of 2 rounds, and receives 1.
    for panel, units in ((uplink, (0, 2, 4)), (total, (0, 3, 6))):
      found = points(plot, 'x', 'y', panel=panel, series='FedFish, E = 8')
      assert found == list(zip(units, (8.0, 6.5, 6.0), strict=True))

  def test_validation_and_barriers_of_images(self, tmp_path):
    settings = {'data.corpus': 'mnist_by_writer', 'data.sequence_length': None}
    run = write_run(tmp_path / 'run', settings=settings)
    values = {'validation__loss': (3, 2, 1), 'barrier__loss': ('', 0.5, 0.25)}
    add_metrics(run, **values)
    plot = plots_of([run])['curves']
    assert plot.panel_names == [
      'Held-out loss (nats per image)',
      'Held-out accuracy (%)',
      'Validation loss (nats per image)',
      'Train loss (nats per image)',
      'Barrier (nats per image)',
    ]
    panel = plot.panel_names[-1]
    assert points(plot, 'x', 'y', panel=panel) == [(1, 0.5), (2, 0.25)]


class TestLocalEpochs:
  def test_by_side_and_budget(self, of_sweep):
    plot = of_sweep['local_epochs_loss']
    where = {'panel': 'Without personalization'}
    # 8 - gain - 0.1 over three seeds.
    found = {
      series: points(plot, 'x', 'y', series=series, **where)
      for series in dict.fromkeys(plot.table['series'])
    }
    assert found == {
      'FedAvg, 4 rounds': [(1, 7.4), (4, 5.9)],
      'FedAvg, 4 local epochs in all': [(1, 7.4), (4, 7.4)],
      'FedFish, 4 rounds': [(1, 6.4), (4, 4.9)],
      'FedFish, 4 local epochs in all': [(1, 6.4), (4, 6.4)],
    }
    where = {'panel': 'Personalized on 50 %', 'series': 'FedAvg, 4 rounds'}
    assert points(plot, 'y', **where) == [(6.4,), (4.9,)]
    dashed = [name for name, look in plot.looks.items() if look.line != '-']
    assert dashed == [name for name in found if name.endswith(' in all')]
    assert 'local_epochs_accuracy' in of_sweep

  def test_runs_in_progress_have_no_final_score(self, tmp_path):
    paths = []
    for epochs in (1, 4):
      options = {'num_local_epochs': epochs, 'num_rounds': 9}
      paths.append(write_scored(tmp_path / str(epochs), 6.0, **options))
    assert 'local_epochs_loss' not in plots_of(paths)
