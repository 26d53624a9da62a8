"""Numbers, words, figure and page of rounds that are worked out by hand."""

import html.parser
import io
import json
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib import image

from tff_fedfish.errors import UserError
from tff_fedfish.toy import figure as figure_lib
from tff_fedfish.toy import results
from tff_fedfish.toy.results import ToySettings
from tff_fedfish.version import __version__

_SENTENCE = (
  'Mean Client-Server Barrier over 2 seeds, in mean squared error: with full '
  'overlap 0.0200 under FedAvg and 0.0000 under FedFish, which is lower in 2 '
  'of 2 (best constant: 1.4850); with partial overlap 0.2000 under FedAvg and '
  '0.2500 under FedFish, which is lower in 0 of 2 (best constant: 1.4850); '
  'with no overlap 1.0000 under FedAvg and 1.0000 under FedFish, which is '
  'lower in 1 of 2 (best constant: 1.4850).'
)


@pytest.fixture(scope='module')
def numbers(two_seeds):
  """The contents of toy.json, read only."""
  return results.summarize(two_seeds, ToySettings(num_seeds=2))


@pytest.fixture(scope='module')
def drawn(two_seeds, numbers):
  """The figure, read only."""
  return figure_lib.toy_figure(two_seeds[0], numbers)


class TestNumbers:
  def test_barriers(self, two_seeds):
    full, partial, none = map(results.round_numbers, two_seeds[0].values())
    assert full['barrier']['fed_avg'] == pytest.approx(0.03)
    assert partial['barrier']['fed_fish'] == pytest.approx(0.3)
    assert none['barrier']['fed_avg'] == pytest.approx(1.5)
    own, other = full['clients']
    assert own['fed_avg_mse'] - own['local_mse'] == pytest.approx(0.02)
    assert other['fed_avg_mse'] - other['local_mse'] == pytest.approx(0.04)

  def test_best_constant(self, two_seeds, numbers):
    found = results.round_numbers(two_seeds[1]['none'])['best_constant_barrier']
    assert found == pytest.approx(1.485)
    found = numbers['summary']['full']['best_constant_barrier']
    assert found == pytest.approx(1.485)

  def test_means_and_intervals_over_seeds(self, numbers):
    assert list(numbers['summary']) == ['full', 'partial', 'none']
    full, partial, none = (s['barrier'] for s in numbers['summary'].values())
    assert full['fed_avg']['mean'] == pytest.approx(0.02)
    assert full['fed_fish']['mean'] == pytest.approx(0.0)
    assert partial['fed_fish']['mean'] == pytest.approx(0.25)
    # Of two seeds a resample holds one of them twice with probability 1/4
    # each, so the 2.5th and 97.5th percentiles are the seeds themselves.
    assert none['fed_avg']['ci_low'] == pytest.approx(0.5)
    assert none['fed_avg']['ci_high'] == pytest.approx(1.5)

  def test_differences_are_taken_seed_by_seed(self, numbers):
    summaries = numbers['summary'].values()
    full, partial, none = (s['fed_fish_minus_fed_avg'] for s in summaries)
    # 0.01 - 0.03 and -0.01 - 0.01: the same in both, so no interval at all.
    assert full['mean'] == pytest.approx(-0.02)
    assert full['ci_high'] == pytest.approx(-0.02)
    # 0.3 - 0.2 and 0.2 - 0.2.
    assert partial['mean'] == pytest.approx(0.05)
    # 1 - 1.5 and 1 - 0.5.
    assert none['mean'] == pytest.approx(0.0)
    assert none['ci_low'] == pytest.approx(-0.5)
    assert none['ci_high'] == pytest.approx(0.5)
    # An equal barrier is no lower one.
    assert [s['num_seeds_fed_fish_lower'] for s in summaries] == [2, 0, 1]

  def test_findings_say_the_numbers(self, numbers, two_seeds):
    assert results.findings(numbers) == _SENTENCE
    one = results.findings(
      results.summarize(two_seeds[1:], ToySettings(num_seeds=1))
    )
    assert one.startswith('Mean Client-Server Barrier over 1 seed, in')
    # A true minus sign, not a hyphen.
    assert 'and −0.0100 under FedFish, which is lower in 1 of 1 (best' in one

  def test_json(self, numbers):
    found = json.loads(json.dumps(numbers))
    assert (found['schema_version'], found['fedfish']) == (1, __version__)
    assert found['settings']['num_seeds'] == 2
    assert found['settings']['hidden_widths'] == [64, 64]
    assert found['settings']['target'] == 'sin(3x) + 0.3x'
    assert found['settings']['supports']['none'] == [[-2.0, -0.5], [0.5, 2.0]]
    partial = found['summary']['partial']
    assert partial['barrier']['fed_fish']['mean'] == pytest.approx(0.25)
    assert partial['fed_fish_minus_fed_avg']['mean'] == pytest.approx(0.05)
    assert partial['num_seeds_fed_fish_lower'] == 0
    assert partial['best_constant_barrier'] == pytest.approx(1.485)
    assert [entry['seed'] for entry in found['seeds']] == [0, 1]
    none = found['seeds'][1]['supports']['none']
    assert none['best_constant_barrier'] == pytest.approx(1.485)
    assert none['barrier'] == pytest.approx({'fed_avg': 0.5, 'fed_fish': 1.0})
    # Own error 0.02, and gaps of 0.5 and 1.5.
    assert none['clients'][1] == pytest.approx(
      {'local_mse': 0.02, 'fed_avg_mse': 0.52, 'fed_fish_mse': 1.52}
    )


class TestFigure:
  def test_says_what_it_shows(self, drawn):
    assert drawn.name == 'toy'
    assert drawn.is_wide
    assert drawn.caption.endswith(_SENTENCE)
    assert drawn.alternative_text.startswith('Three panels with the functions')
    assert drawn.alternative_text.endswith(_SENTENCE)

  def test_svg_is_named_and_stands_alone(self, drawn):
    root = ElementTree.fromstring(drawn.svg)
    assert root.tag == '{http://www.w3.org/2000/svg}svg'
    assert root.get('aria-label') == drawn.alternative_text
    used = re.findall(r'(?:href="#|url\(#)([^")]*)', drawn.svg)
    ids = re.findall(r'\bid="([^"]*)"', drawn.svg)
    assert used and set(used) <= set(ids)

  def test_picture_has_everybodys_colour(self, drawn):
    pixels = image.imread(io.BytesIO(drawn.png))[::2, ::2, :3]
    looks = figure_lib.METHOD_STYLES.values()
    colors = [*figure_lib.CLIENT_COLORS, *(look.color for look in looks)]
    assert colors[2:] == ['#0072B2', '#D55E00']
    for color in colors:
      wanted = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
      assert (np.abs(pixels - wanted).max(axis=2) < 0.02).sum() > 25, color


class _Outline(html.parser.HTMLParser):
  """Collects tags, attributes and text, and checks the nesting."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.attributes, self.text, self._open = [], [], '', []
    self.feed(text)
    self.close()
    assert not self._open

  def handle_starttag(self, tag, attributes):
    self.tags.append(tag)
    self.attributes += attributes
    if tag != 'meta':
      self._open.append(tag)

  def handle_startendtag(self, tag, attributes):
    self.tags.append(tag)
    self.attributes += attributes

  def handle_endtag(self, tag):
    assert self._open.pop() == tag

  def handle_data(self, data):
    self.text += data

  def values(self, *names):
    return [value for key, value in self.attributes if key in names]


class TestPage:
  @pytest.fixture(scope='class')
  def outline(self, numbers, drawn):
    return _Outline(results.render_page(numbers, drawn))

  def test_refers_to_nothing_outside(self, outline):
    assert not {'script', 'link', 'img', 'iframe'} & set(outline.tags)
    links = outline.values('href', 'xlink:href')
    ids = outline.values('id')
    assert {link[0] for link in links} == {'#'}
    assert {link[1:] for link in links} <= set(ids)
    assert len(set(ids)) == len(ids)
    assert set(outline.values('aria-labelledby')) <= set(ids)
    assert outline.values('src') == []

  def test_has_the_look_and_the_text_alternatives(self, outline, drawn):
    assert outline.tags.count('style') == 1 + drawn.svg.count('<style')
    assert 'color-scheme: light; --ink' in outline.text
    assert outline.tags.count('figure') == outline.tags.count('svg') == 1
    assert drawn.alternative_text in outline.values('aria-label')
    assert f'fedfish toy {__version__}' in outline.values('content')

  def test_shows_the_numbers(self, outline):
    text = ' '.join(outline.text.split())
    # The lower mean of a row is marked; equal ones are both.
    assert (
      'full overlap 0.02000.0100 to 0.0300 ★lower: 0.0000−0.0100 to 0.0100 '
      '−0.0200−0.0200 to −0.0200 1.4850 2 of 2 partial overlap ★lower: 0.2000'
      in text
    )
    assert 'no overlap ★lower: 1.0000' in text
    assert 'The worst fit of a client’s own model is 0.0200.' in text
    # Seed 1, no overlap, client 2: 0.02, 0.02 + 0.5 and 0.02 + 1.5.
    assert '1no overlap2 0.0200 0.5200 1.5200' in text
    assert 'inputs, no overlap−2.0 to −0.5 and 0.5 to 2.0' in text
    assert 'fedfish toy --num_seeds 2' in text


def test_unusable_output_is_found_before_any_work(tmp_path, monkeypatch):
  def no_round(*_):
    raise AssertionError('a round was run')

  monkeypatch.setattr('tff_fedfish.progress.Progress.__enter__', no_round)
  (tmp_path / 'mine.txt').write_text('mine')
  with pytest.raises(
    UserError, match=r"`--output` must be empty or new, but .* 'mine.txt'"
  ):
    results.run_toy(tmp_path, ToySettings())
  assert [p.name for p in tmp_path.iterdir()] == ['mine.txt']
