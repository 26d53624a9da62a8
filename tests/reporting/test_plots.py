"""Words of plots, and that their files are sound."""

import dataclasses
import io
import pathlib
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib import image

from tff_fedfish.reporting import (
  barriers,
  bars,
  curves,
  figures,
  loading,
  scatters,
  style,
)
from tff_fedfish.reporting.runs import HELD_OUT


def _curves(runs):
  return curves.learning_curves(runs)


@pytest.fixture(scope='module')
def runs_of_pair(pair):
  """FedAvg and FedFish, read only."""
  return loading.load_runs(pair)


@pytest.fixture(scope='module')
def curves_of_pair(runs_of_pair):
  """Their learning curves: three plots, of which each takes a moment."""
  return tuple(_curves(runs_of_pair))


def test_styles_tell_runs_apart_in_colour_and_in_grey(tmp_path, write_run):
  # The third is a method that there is not yet.
  runs = [
    dataclasses.replace(
      run,
      config=run.config | {'algorithm': {'name': name}},
      label=f'{name}, {run.label}',
      name=f'{name}_{run.num_local_epochs}',
    )
    for name in ('fed_avg', 'fed_fish', 'fed_prox')
    for run in loading.load_runs(
      write_run(tmp_path / f'{name}_{e}', num_local_epochs=e) for e in (1, 8)
    )
  ]
  styles = style.run_styles(runs)
  colors = {run.algorithm: styles[run.label].color for run in runs}
  assert colors['fed_fish'] == '#D55E00'
  assert colors['fed_avg'] == '#0072B2'
  assert len(set(colors.values())) == 3
  # Without the colour: (fill or hatch) tells methods apart, line epochs.
  by_name = {run.name: styles[run.label] for run in runs}
  filled, empty = (
    by_name[name].marker_arguments() for name in ('fed_fish_8', 'fed_avg_8')
  )
  assert filled['markerfacecolor'] == filled['color']
  assert empty['markerfacecolor'] == 'white'
  assert len({s.hatch for s in styles.values()}) == 3
  assert by_name['fed_fish_1'].line != by_name['fed_fish_8'].line
  assert by_name['fed_fish_1'].marker != by_name['fed_fish_8'].marker
  # More local epochs are darker: the full hue at the largest.
  assert by_name['fed_fish_8'].shade == '#d55e00'
  # 255 - 0.4 x (255 - 213, 255 - 94, 255 - 0) = 238.2, 190.6, 153.
  assert by_name['fed_fish_1'].shade == '#eebf99'


def test_runs_with_equal_method_and_epochs_differ_in_marker(
  tmp_path, write_run
):
  runs = loading.load_runs(
    [write_run(tmp_path / str(k)) for k in range(4)]
    + [write_run(tmp_path / '8', num_local_epochs=8)]
  )
  markers = [look.marker for look in style.run_styles(runs).values()]
  assert len(set(markers)) == 5
  # The first of its kind keeps the marker of its local epochs.
  assert markers[0] == 'o'
  assert markers[4] == 's'


def test_learning_curves_say_in_words_what_they_show(curves_of_pair):
  drawn = {figure.name: figure for figure in curves_of_pair}
  assert list(drawn) == [
    'curve_held_out_loss',
    'curve_held_out_accuracy',
    'curve_train_loss',
  ]
  assert (
    'FedFish, E = 8: 8.000 at round 0, 6.000 at round 2'
    in drawn['curve_held_out_loss'].alternative_text
  )
  # Accuracy is r / 100 in round r.
  assert (
    'FedAvg, E = 8: 0.0 % at round 0, 2.0 % at round 2'
    in drawn['curve_held_out_accuracy'].alternative_text
  )


@pytest.mark.usefixtures('drawn')
def test_curves_leave_out_rounds_without_a_finite_value(tmp_path, write_run):
  runs = loading.load_runs(
    [
      write_run(
        tmp_path / 'run', held_out_losses=(8.0, None, 7.0, float('nan'))
      ),
      write_run(
        tmp_path / 'none', algorithm='fed_avg', held_out_losses=(None,)
      ),
    ]
  )
  [loss, *_] = _curves(runs)
  assert '8.000 at round 0, 7.000 at round 2.' in loss.alternative_text
  assert loss.caption.endswith('No such values: FedAvg, E = 1.')


def test_no_curve_without_values(tmp_path, write_run):
  directory = write_run(tmp_path / 'run')
  (directory / 'metrics.csv').write_text('round\n0\n')
  runs = loading.load_runs([directory])
  assert _curves(runs) == []
  assert curves.cost_curves(runs) == []


@pytest.mark.usefixtures('drawn')
def test_communication_curves(runs_of_pair):
  drawn = curves.cost_curves(runs_of_pair)
  assert [figure.name for figure in drawn] == [
    'communication_uplink',
    'communication_total',
  ]
  # FedFish sends 2 units up in each of 2 rounds, and receives 1.
  assert (
    'FedFish, E = 8: 0.0 % at uplink 0, 2.0 % at uplink 4'
    in drawn[0].alternative_text
  )
  assert '2.0 % at uplink and downlink 6.' in drawn[1].alternative_text


@pytest.mark.usefixtures('drawn')
def test_scores_by_fraction(pair, tmp_path, write_run):
  runs = loading.load_runs([*pair, write_run(tmp_path / 'plain')])
  loss, accuracy = bars.fraction_bars(
    runs,
    subject=HELD_OUT,
    name='held_out',
  )
  # FedFish: (5.5 + 6.5 + 5 + 6) / 4 and (5 + 6 + 4.5 + 4.5) / 4.
  assert 'FedFish, E = 8: 5.750 at 0 %, 5.000 at 50 %' in loss.alternative_text
  assert loss.caption.startswith('Lower is better.')
  assert loss.caption.endswith('Not evaluated: FedFish, E = 1.')
  assert '5.0 % at 50 %' in accuracy.alternative_text
  assert accuracy.caption.startswith('Higher is better.')
  # Bars begin at 0, points need not.
  assert accuracy.alternative_text.startswith('Bar chart, accuracy on')
  assert loss.alternative_text.startswith('Dot chart, loss on')
  assert 'does not start at 0' in loss.caption
  assert 'does not start at 0' not in accuracy.caption


@pytest.mark.usefixtures('drawn')
def test_personalization_scatter_counts_improved_clients(pair):
  runs = loading.load_runs(pair)
  figure = scatters.personalization_scatter(
    runs,
    subject=HELD_OUT,
    name='x',
  )
  # FedAvg: 6 -> 5, 7 -> 6.5, 5 -> 5.5 (worse), 6 -> 4.
  assert 'on 50 %, FedAvg, E = 8: 3 of 4 (75 %)' in figure.caption
  assert 'FedFish, E = 8: 4 of 4 (100 %)' in figure.caption


def test_extreme_clients_are_ordered_by_change(pair):
  evaluation = loading.load_runs(pair)[0].held_out()
  # Changes: d -2, a -1, b -0.5, c +0.5.
  assert scatters.extreme_clients(evaluation, 1) == [
    ('d.org', 6.0, 4.0),
    ('c.org', 5.0, 5.5),
  ]
  names = [row[0] for row in scatters.extreme_clients(evaluation, 3)]
  assert names == ['d.org', 'a.org', 'b.org', 'c.org']


@pytest.mark.usefixtures('drawn')
def test_barrier_of_a_pair(pair):
  runs = loading.load_runs(pair)
  loss, error = barriers.barrier_scatters(runs)
  # FedFish 0.2 and 0.3 against FedAvg 0.5 and 0.2: lower for the first.
  assert 'E = 8: 1 of 2 (50 %)' in loss.caption
  # Errors 0.05 and 0.00 against 0.10 and -0.01.
  assert 'E = 8: 1 of 2 (50 %)' in error.caption
  [pairing] = barriers.find_pairs(runs)
  assert (pairing.run.name, pairing.baseline.name) == ('fish', 'average')


@pytest.mark.usefixtures('drawn')
def test_clients_of_one_method_only_are_counted(
  tmp_path, write_run, write_evaluation
):
  directories = []
  for algorithm, num_clients in (('fed_avg', 3), ('fed_fish', 2)):
    directories.append(write_run(tmp_path / algorithm, algorithm=algorithm))
    write_evaluation(
      directories[-1], 'e', barriers=((4.0, 4.5, 0.2, 0.1),) * num_clients
    )
  runs = loading.load_runs(directories)
  [pairing] = barriers.find_pairs(runs)
  assert (len(pairing.clients), pairing.num_unmatched) == (2, 1)
  [loss, _] = barriers.barrier_scatters(runs)
  # Equal barriers are not lower ones.
  assert '0 of 2 (0 %)' in loss.caption
  assert 'Left out: 1 rows of clients' in loss.caption


def test_several_runs_are_paired_by_the_rest_of_their_configuration(
  tmp_path, write_run, write_evaluation
):
  directories = []
  for algorithm in ('fed_avg', 'fed_fish'):
    for num_rounds in (2, 20):
      directory = write_run(
        tmp_path / f'{algorithm}_{num_rounds}',
        algorithm=algorithm,
        num_rounds=num_rounds,
      )
      write_evaluation(directory, 'e', barriers=((4.0, 4.5, 0.2, 0.1),))
      directories.append(directory)
  pairs = barriers.find_pairs(loading.load_runs(directories))
  assert [(p.run.name, p.baseline.name) for p in pairs] == [
    ('fed_fish_2', 'fed_avg_2'),
    ('fed_fish_20', 'fed_avg_20'),
  ]


@pytest.mark.usefixtures('drawn')
def test_barrier_without_a_pair(pair):
  runs = loading.load_runs(pair[1:])
  [figure] = barriers.barrier_scatters(runs)
  assert figure.name == 'barrier_local_global'
  assert 'FedFish, E = 8: 2 of 2 (100 %)' in figure.caption


def test_no_barrier(tmp_path, write_run):
  runs = loading.load_runs([write_run(tmp_path / 'run')])
  assert barriers.barrier_scatters(runs) == []


def test_svg_is_one_named_element_with_ids_of_its_own(curves_of_pair):
  for figure in curves_of_pair:
    root = ElementTree.fromstring(figure.svg)
    assert root.tag.endswith('svg')
    assert root.get('role') == 'img'
    assert root.get('aria-label') == figure.alternative_text
    ids = re.findall(r'\bid="([^"]*)"', figure.svg)
    used = re.findall(r'(?:href="#|url\(#)([^")]*)', figure.svg)
    assert ids and len(set(ids)) == len(ids)
    assert used and set(used) <= set(ids)
    assert all(name.startswith(f'{figure.name}-') for name in ids)


def test_png_shows_the_colours_of_the_methods(curves_of_pair):
  figure = curves_of_pair[0]
  pixels = image.imread(io.BytesIO(figure.png))[:, :, :3]
  for color in ('#D55E00', '#0072B2'):
    wanted = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    assert (np.abs(pixels - wanted).max(axis=2) < 0.02).sum() > 100
  # White paper, not a transparent or dark one.
  assert (pixels[0, 0] == 1).all()


@pytest.mark.filterwarnings('error')
def test_hostile_names_neither_warn_nor_break_plots(tmp_path, write_run):
  names = ['_hidden', '$x_{', 'a & <b>"--> ', '日本 \u202e', 'x' * 200]
  runs = loading.load_runs([write_run(tmp_path / name) for name in names])
  for figure in _curves(runs):
    ElementTree.fromstring(figure.svg)
    assert figure.png.startswith(b'\x89PNG')


def test_drawable_keeps_what_the_font_has():
  assert figures.drawable('é – µ $x$') == 'é – µ $x$'
  assert figures.drawable('日\n\u202e') == '???'
  assert figures.drawable('abcdef', 6) == 'abcdef'
  assert figures.drawable('abcdefg', 6) == 'abcde…'


def test_plots_leave_the_global_settings_alone(runs_of_pair):
  import matplotlib

  before = dict(matplotlib.rcParams)
  _curves(runs_of_pair)
  assert dict(matplotlib.rcParams) == before


def test_pyplot_and_its_global_state_are_not_used():
  sources = pathlib.Path(figures.__file__).parent.glob('*.py')
  assert all('pyplot' not in path.read_text() for path in sources)
