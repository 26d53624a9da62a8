"""Plots: a table becomes a picture, a CSV file and words."""

import io
import re
import xml.etree.ElementTree as ElementTree

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import image

from tff_fedfish.reporting import drawing, labels, plots, style

_LOOKS = style.method_looks(
  (f'{name}, E = {epochs}', name, epochs)
  for name in ('fed_avg', 'fed_fish')
  for epochs in (1, 8)
)


def _plot(table, **words):
  defaults = {
    'name': 'loss',
    'title': 'Loss by round',
    'caption': '',
    'kind': 'line',
    'x': 'Round',
    'y': 'Loss',
  }
  return plots.plot(pd.DataFrame(table), **(defaults | words))


def _curves(**words):
  return _plot(
    {
      'series': ['fed_avg, E = 1'] * 3 + ['fed_fish, E = 1'] * 2,
      'point': [0, 1, 2, 0, 2],
      'x': [0, 1, 2, 0, 2],
      'y': [8.0, 7.0, 6.5, 8.0, 1 / 3],
      'low': [None, 6.5, 6.0, None, 0.25],
      'high': [None, 7.5, 7.0, None, 0.5],
    },
    looks=_LOOKS,
    **words,
  )


@pytest.fixture(scope='module')
def curves():
  """Two curves, read only."""
  return _curves()


def test_the_csv_file_is_the_table(curves):
  assert curves.csv.splitlines() == [
    'series,point,x,y,low,high',
    '"fed_avg, E = 1",0,0,8.0,,',
    '"fed_avg, E = 1",1,1,7.0,6.5,7.5',
    '"fed_avg, E = 1",2,2,6.5,6.0,7.0',
    '"fed_fish, E = 1",0,0,8.0,,',
    '"fed_fish, E = 1",2,2,0.3333333333333333,0.25,0.5',
  ]


def test_a_csv_cell_is_no_formula():
  found = _plot({'series': ['=1+1'], 'x': ['@a'], 'y': [np.float32(0.1)]})
  assert found.csv.splitlines()[1] == "'=1+1,'@a,0.10000000149011612"


def test_rows_without_a_finite_number_are_left_out():
  found = _plot({'x': [0, 1, np.nan, 3], 'y': [8.0, np.nan, 7.0, np.inf]})
  assert found.csv.splitlines() == ['series,x,y', ',0.0,8.0']
  assert _plot({'x': [0], 'y': [np.nan]}) is None
  assert _plot({'x': [], 'y': []}) is None


def test_words_of_a_line_are_its_ends(curves):
  assert curves.words == (
    'Line chart. Loss by round. fed_avg, E = 1: 8.000 at 0, 6.500 at 2; '
    'fed_fish, E = 1: 8.000 at 0, 0.333 at 2.'
  )


def test_words_of_bars_are_all_values():
  found = _plot(
    {
      'panel': ['Loss', 'Accuracy', 'Accuracy'],
      'series': ['a'] * 3,
      'x': ['E = 1', 'E = 1', 'E = 4'],
      'y': [6.0, 3.0, 4.0],
    },
    kind='bar',
    panels='y',
    places=1,
  )
  assert found.words.endswith(
    'Loss: a: 6.0 at E = 1; Accuracy: a: 3.0 at E = 1, 4.0 at E = 4.'
  )


def test_words_of_points_count_those_below_the_diagonal():
  table = {'series': ['a'] * 4, 'x': [6, 7, 5, 6], 'y': [5.0, 6.5, 5.5, 6.0]}
  found = _plot(table, kind='scatter')
  # 5 < 6 and 6.5 < 7.
  assert found.words.endswith('a: 2 of 4 points below the diagonal.')


def test_an_svg_is_one_named_element_with_ids_of_its_own(curves):
  root = ElementTree.fromstring(curves.svg)
  assert root.tag.endswith('svg')
  assert root.get('role') == 'img'
  assert root.get('aria-label') == curves.words
  ids = re.findall(r'\bid="([^"]*)"', curves.svg)
  used = re.findall(r'(?:href="#|url\(#)([^")]*)', curves.svg)
  assert ids and len(set(ids)) == len(ids)
  assert used and set(used) <= set(ids)
  assert all(name.startswith('loss-') for name in ids)


def test_a_png_shows_the_colours_of_the_methods(curves):
  pixels = image.imread(io.BytesIO(curves.file('png')))[:, :, :3]
  for color in ('#D55E00', '#0072B2'):
    wanted = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    assert (np.abs(pixels - wanted).max(axis=2) < 0.02).sum() > 100
  # White paper, not a transparent or dark one.
  assert (pixels[0, 0] == 1).all()


def test_a_pdf_has_no_time_and_fonts_that_publishers_take(curves):
  pdf = curves.file('pdf')
  assert b'/Title (Loss by round)' in pdf
  assert not re.search(rb'CreationDate|ModDate|Producer|Creator', pdf)
  assert b'/Type3' not in pdf and b'/FontFile2' in pdf


def test_equal_plots_give_equal_files_and_change_no_settings(curves):
  again, before = _curves(), dict(matplotlib.rcParams)
  for file_format in ('pdf', 'svg', 'png'):
    assert again.file(file_format) == curves.file(file_format)
  assert dict(matplotlib.rcParams) == before


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize(
  'kind, panels',
  [('line', 'x'), ('line', ''), ('point', 'y'), ('scatter', '')],
)
def test_hostile_names_neither_warn_nor_break(kind, panels):
  names = ['_hidden', '$x_{', 'a & <b>"--> ', '日本 \u202e', 'x' * 200]
  table = {'series': names, 'x': range(5), 'y': range(5)}
  if panels:
    table['panel'] = names
  found = _plot(table, kind=kind, panels=panels, title=names[2])
  ElementTree.fromstring(found.svg)


@pytest.mark.parametrize('kind', ['line', 'bar', 'point', 'scatter'])
@pytest.mark.parametrize('values', [[1e9, -1.0], [0.0] * 20])
def test_odd_numbers_are_drawn(kind, values):
  found = _plot({'x': range(len(values)), 'y': values}, kind=kind)
  ElementTree.fromstring(found.svg)


def test_many_points_are_a_small_picture():
  table = {'x': np.arange(50_000), 'y': np.arange(50_000) % 977}
  assert len(_plot(table, kind='scatter').svg) < 300_000


@pytest.mark.parametrize('num_panels, rows, columns', [(2, 1, 2), (8, 4, 2)])
def test_titles_of_panels_are_whole(num_panels, rows, columns):
  names = [
    f'FedFish one, E = {k}, client learning rate = 0.05'
    for k in range(num_panels)
  ]
  found = _plot(
    {'panel': names, 'series': names, 'x': 1.0, 'y': 1.0}, kind='scatter'
  )
  figure = drawing.draw(found)
  titles = [axes.get_title() for axes in figure.axes if axes.get_visible()]
  assert [title.replace('\n', ' ') for title in titles] == names
  assert all('E = ' in title for title in titles)
  assert figure.axes[0].get_gridspec().get_geometry() == (rows, columns)


def test_panels_that_lack_a_place_share_the_axis():
  table = {'panel': [*'aabb'], 'x': [0.0, 50.0, 0.0, 5.0], 'y': [4.0] * 4}
  first, second = drawing.draw(_plot(table, kind='point', panels='y')).axes
  assert [label.get_text() for label in second.get_xticklabels()] == [
    *('0', '5', '50')
  ]
  # Those at 50 and at 5.
  assert first.lines[0].get_xdata().tolist() == [0, 2]
  assert second.lines[0].get_xdata().tolist() == [0, 1]


def test_drawable_keeps_what_the_font_has():
  assert labels.drawable('é – µ $x$', 9) == 'é – µ $x$'
  assert labels.drawable('日\n\u202e', 9) == '???'
  assert labels.drawable('abcdefg', 6) == 'abcde…'


def test_looks_tell_series_apart_in_colour_and_in_grey():
  average, fish = _LOOKS['fed_avg, E = 8'], _LOOKS['fed_fish, E = 8']
  assert (average.color, fish.color) == ('#0072B2', '#D55E00')
  # Without the colour: fill or hatch tells methods apart, the line epochs.
  assert average.marker_arguments()['markerfacecolor'] == 'white'
  assert fish.marker_arguments()['markerfacecolor'] == fish.color
  assert average.hatch != fish.hatch
  one = _LOOKS['fed_fish, E = 1']
  assert (one.line, one.marker) != (fish.line, fish.marker)
  # Of one method the later are darker: the full hue is the last.
  assert fish.shade == '#d55e00'
  # 255 - 0.4 x (255 - 213, 255 - 94, 255 - 0) = 238.2, 190.6, 153.
  assert one.shade == '#eebf99'


def test_hues_differ_while_any_is_free():
  names = ['fed_avg', 'fed_fish', *(f'absent.m{k}' for k in range(8))]
  looks = style.method_looks((name, name, 1) for name in names)
  for part in ('color', 'hatch'):
    assert len({getattr(looks[name], part) for name in names}) == 10
  # What is built in keeps its own, whatever the order.
  assert (looks['fed_fish'].color, looks['fed_fish'].hatch) == ('#D55E00', '')
  assert looks == style.method_looks((n, n, 1) for n in reversed(names))
  more = style.method_looks((f'x.{k}', f'x.{k}', 1) for k in range(20))
  assert len({look.color for look in more.values()}) == 8
