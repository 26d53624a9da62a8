"""The numbers beside each figure: all that are drawn, and exactly these."""

import csv
import io
import re

import numpy as np
import pytest
from matplotlib import collections, container

from tff_fedfish.data.client_ids import text_to_client_id
from tff_fedfish.reporting import (
  curves,
  figures,
  group_size_plots,
  loading,
  page,
)
from tff_fedfish.reporting.repetitions import pool_repetitions


def _rows(figure):
  """Returns the rows of a figure's CSV file, numbers as such."""
  rows = list(csv.DictReader(io.StringIO(figure.csv)))
  for row in rows:
    for name in ('x', 'y', 'low', 'high'):
      row[name] = float(row[name]) if row[name] else None
  return rows


def _cells(figure):
  return [tuple(row.values()) for row in _rows(figure)]


def _drawn_numbers(figure):
  """Returns what matplotlib draws: heights, and ends of whiskers and bands."""
  heights, ends = [], []
  for axes in figure.axes:
    whiskers = [
      found
      for found in axes.containers
      if isinstance(found, container.ErrorbarContainer)
    ]
    of_whiskers = {
      id(line) for found in whiskers for line in (found[0], *found[1])
    }
    for line in axes.lines:
      is_diagonal = line.get_color() == '#777777'
      if (
        id(line) not in of_whiskers
        and not is_diagonal
        # Lines across the axes have another one.
        and line.get_transform() == axes.transData
      ):
        heights += list(line.get_ydata())
    for bars in axes.containers:
      if isinstance(bars, container.BarContainer):
        heights += [bar.get_height() for bar in bars]
    for found in whiskers:
      ends += list(found[2][0].get_segments()[0][:, 1])
    for band in axes.collections:
      if isinstance(band, collections.FillBetweenPolyCollection):
        # There and back, with a corner repeated at both ends.
        [path] = band.get_paths()
        ends += list(path.vertices[:, 1])
  return heights, ends


def _check_all_is_recorded(found):
  for figure in found.values():
    heights, ends = _drawn_numbers(figure)
    rows = figure.rows
    recorded = [y for *_, y, _, _ in rows if y is not None]
    np.testing.assert_allclose(sorted(recorded), sorted(heights), rtol=1e-12)
    recorded = {v for *_, low, high in rows for v in (low, high)} - {None}
    assert len(ends) >= len(recorded)
    for value in recorded:
      assert np.isclose(ends, value, rtol=1e-12).any()
    for value in ends:
      assert np.isclose(list(recorded), value, rtol=1e-12).any()


def test_all_that_a_report_draws_is_recorded(pair, drawn):
  page.build_sections(loading.load_runs(pair))
  assert len(drawn) == 13
  _check_all_is_recorded(drawn)


def test_all_that_a_report_of_repetitions_draws_is_recorded(
  tmp_path, write_sweep, drawn
):
  gains = {
    (algorithm, epochs, 2): epochs / 8
    for algorithm in ('fed_avg', 'fed_fish')
    for epochs in (1, 4)
  }
  runs = loading.load_runs(write_sweep(tmp_path, gains))
  page.build_sections(pool_repetitions(runs), runs)
  assert {'local_epochs_accuracy', 'local_epochs_bars'} <= set(drawn)
  _check_all_is_recorded(drawn)
  # Three seeds: losses 8 - 1/8 - k/10 in round 2; drawn with their band.
  [row] = [
    row
    for row in drawn['curve_held_out_loss'].rows
    if row[:2] == ('FedAvg, E = 1', 2)
  ]
  np.testing.assert_allclose(row[2:], [2, 7.775, 7.675, 7.875])
  # After personalization one nat less; percent are (10 - loss), x are epochs.
  rows = drawn['local_epochs_accuracy'].rows
  name = 'FedFish: Personalized on 50 %'
  assert [row[2] for row in rows if row[0] == name] == [1, 4]
  mean = sum(10 - (8 - 1 / 8 - k / 10 - 1) for k in range(3)) / 3
  assert [row[3] for row in rows if row[0] == name][0] == pytest.approx(mean)


@pytest.fixture(name='sections', scope='module')
def _sections(pair):
  """Name -> figure of the pair's report."""
  sections = page.build_sections(loading.load_runs(pair))
  return {f.name: f for figures in sections.values() for f in figures}


def test_curves_by_hand(pair):
  runs = loading.load_runs(pair)
  found = curves.learning_curves(runs)
  drawn = {figure.name: figure for figure in found}
  assert drawn['curve_held_out_loss'].csv.splitlines()[:3] == [
    'series,point,x,y,low,high',
    '"FedAvg, E = 8",0,0,8.0,,',
    '"FedAvg, E = 8",1,1,7.0,,',
  ]
  # Accuracy is r / 100 in round r, drawn in percent.
  assert _cells(drawn['curve_held_out_accuracy'])[3:] == [
    ('FedFish, E = 8', str(r), r, r, None, None) for r in range(3)
  ]


def test_scores_with_their_intervals(sections):
  # Losses (6 + 7 + 5 + 6) / 4 and (5 + 6.5 + 5.5 + 4) / 4, -/+ 0.25.
  assert _cells(sections['held_out_loss'])[:2] == [
    ('FedAvg, E = 8', '', 0, 6.0, 5.75, 6.25),
    ('FedAvg, E = 8', '', 50, 5.25, 5.0, 5.5),
  ]
  accuracies = _rows(sections['held_out_accuracy'])[:2]
  np.testing.assert_allclose([row['y'] for row in accuracies], [4, 4.75])


def test_clients_by_name(sections):
  # FedAvg: 6 -> 5, 7 -> 6.5, 5 -> 5.5, 6 -> 4.
  assert _cells(sections['held_out_before_after'])[:4] == [
    ('FedAvg, E = 8', 'a.org', 6, 5, None, None),
    ('FedAvg, E = 8', 'b.org', 7, 6.5, None, None),
    ('FedAvg, E = 8', 'c.org', 5, 5.5, None, None),
    ('FedAvg, E = 8', 'd.org', 6, 4, None, None),
  ]
  barriers = _rows(sections['barrier_loss'])
  assert [row['point'] for row in barriers] == ['client0', 'client1', '']
  # FedFish 5.2 - 5 and 4.3 - 4; FedAvg 5.5 - 5 and 4.2 - 4; and their means.
  np.testing.assert_allclose([r['x'] for r in barriers], [0.2, 0.3, 0.25])
  np.testing.assert_allclose([r['y'] for r in barriers], [0.5, 0.2, 0.35])
  assert [r['series'] for r in barriers] == ['E = 8', 'E = 8', 'E = 8, mean']


def test_clients_and_runs_are_no_formulas(
  tmp_path, write_run, write_evaluation, drawn
):
  run = write_run(tmp_path / '=run')
  write_evaluation(run, 'e', client_ids=('=1+1', '@a', '-b', 'c'))
  runs = loading.load_runs([run, write_run(tmp_path / 'other')])
  page.build_sections(runs)
  text = drawn['held_out_before_after'].numbers_csv()
  rows = list(csv.DictReader(io.StringIO(text)))
  points = [row['point'] for row in rows]
  assert points == ['%3D1+1', '%40a', '%2Db', 'c']
  assert list(map(text_to_client_id, points)) == [b'=1+1', b'@a', b'-b', b'c']
  for line in text.splitlines():
    assert not line.startswith(('=', '+', '-', '@'))


def test_group_sizes():
  sizes = {'num_words': np.array([1, 3, 2, 8, 0])}
  ranks, histogram = group_size_plots.group_size_figures('c4', sizes)
  assert _cells(ranks) == [
    ('words', '', rank, size, None, None)
    for rank, size in ((1, 8), (2, 3), (3, 2), (4, 1))
  ]
  # One group of 1, two of 2 to 3, none of 4 to 7, one of 8 to 15.
  assert _cells(histogram)[:4] == [
    ('words', '1 to 1', 1, 1, None, None),
    ('words', '2 to 3', 2, 2, None, None),
    ('words', '4 to 7', 4, 0, None, None),
    ('words', '8 to 15', 8, 1, None, None),
  ]
  assert [row['series'] for row in _rows(histogram)[4:]] == [
    'words: median',
    'words: 90 % have at most',
  ]
  assert all(row['y'] is None for row in _rows(histogram)[4:])


def test_picture_files(sections):
  figure = sections['held_out_accuracy']
  assert figure.file('png') == figure.png
  assert figure.file('svg').decode() == f'{figure.svg}\n'
  pdf = figure.file('pdf')
  assert pdf.startswith(b'%PDF-')
  assert b'/Title (Accuracy on held-out clients)' in pdf
  # No time, and no name or version of a program.
  assert not re.search(rb'CreationDate|ModDate|Producer|Creator', pdf)
  assert figure.file('pdf') == pdf
  # TrueType, not Type 3, which publishers refuse.
  assert b'/Type3' not in pdf and b'/FontFile2' in pdf


def test_equal_figures_give_equal_files(pair, sections):
  runs = loading.load_runs(pair)
  again = curves.cost_curves(runs)
  for figure in again:
    first = sections[figure.name]
    assert figure.csv == first.csv
    for file_format in ('png', 'svg', 'pdf'):
      assert figure.file(file_format) == first.file(file_format)


def test_numbers_are_exact():
  with figures.styled() as figure:
    axes = figure.add_subplot()
    figures.record(axes, "'", [np.float64(0.1)], [np.float32(0.1)])
    assert figure.numbers_csv().splitlines()[1] == (
      "',,0.1,0.10000000149011612,,"
    )
