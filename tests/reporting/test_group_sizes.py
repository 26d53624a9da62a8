"""Percentiles, shares and plots of group sizes."""

import io
import math
import xml.etree.ElementTree as ElementTree

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from matplotlib import image

from tff_fedfish.reporting import group_size_plots, group_sizes

_SIZES = st.lists(st.integers(0, 10**9), min_size=1, max_size=300).map(np.array)


class TestPercentiles:
  def test_by_hand(self):
    # 10 sizes: 10 % is 1 of them, 11 % is 2, since 1 of 10 is only 10 %.
    sizes = np.array([50, 1, 2, 3, 4, 5, 6, 7, 8, 1000])
    wanted = (0, 10, 11, 50, 90, 90.001, 99.999, 100)
    found = group_sizes.percentiles(sizes, wanted)
    assert found == [1, 1, 2, 5, 50, 1000, 1000, 1000]

  def test_no_group(self):
    assert group_sizes.percentiles(np.array([], np.int64), (0, 50)) == []

  @hypothesis.given(_SIZES, st.integers(0, 100_000))
  def test_definition(self, sizes, thousandths):
    (found,) = group_sizes.percentiles(sizes, [thousandths / 1000])
    assert found in sizes
    assert 100_000 * (sizes <= found).sum() >= thousandths * len(sizes)
    if thousandths:
      assert 100_000 * (sizes < found).sum() < thousandths * len(sizes)

  def test_table(self):
    table = group_sizes.percentile_table(
      {'num_examples': np.array([1, 2, 4]), 'num_words': np.array([7, 8, 10])}
    )
    lines = table.splitlines()
    assert lines[0] == 'percentile,num_examples,num_words'
    assert lines[1] == '0,1,7'
    assert '50,2,8' in lines
    assert lines[-2] == '100,4,10'
    # (1 + 2 + 4) / 3 and 25 / 3.
    assert lines[-1] == 'mean,2.333,8.333'


class TestTopShares:
  def test_by_hand(self):
    # 150 groups of 1 and one of 50: 200 in all. 1 % of 151 is 1.51, so 2
    # groups of 51; 10 % is 15.1, so 16 groups of 65.
    sizes = np.array([1] * 100 + [50] + [1] * 50)
    found = [tuple(top) for top in group_sizes.top_shares(sizes)]
    assert found == [
      ('1', 1, 0.25),
      ('10', 10, 59 / 200),
      ('100', 100, 149 / 200),
      ('1 %', 2, 51 / 200),
      ('10 %', 16, 65 / 200),
    ]

  def test_percent_of_few_groups(self):
    # 10 % of 11 groups, 1.1, are 2; 1 % would be less than one.
    found = group_sizes.top_shares(np.arange(11))
    assert [top.label for top in found] == ['1', '10', '10 %']
    assert [top.num_groups for top in found] == [1, 10, 2]

  @pytest.mark.parametrize('num_groups', [0, 1])
  def test_too_few(self, num_groups):
    assert group_sizes.top_shares(np.ones(num_groups, np.int64)) == []

  def test_nothing_to_share(self):
    assert group_sizes.top_shares(np.zeros(2, np.int64)) == [('1', 1, 0.0)]

  @hypothesis.given(_SIZES)
  def test_more_groups_hold_more(self, sizes):
    found = sorted(group_sizes.top_shares(sizes), key=lambda t: t.num_groups)
    shares = [top.share for top in found]
    assert shares == sorted(shares)
    assert all(0 <= share <= 1 for share in shares)
    for top in found:
      even = top.num_groups / len(sizes)
      assert (
        top.share >= even or math.isclose(top.share, even) or not any(sizes)
      )


def _figures(sizes, title='c4 by host'):
  return group_size_plots.group_size_figures(title, sizes)


class TestPlots:
  # 11 groups: 10 of one example and one of 10: half of 20.
  _SIZES = (1,) * 10 + (10,)

  @pytest.fixture(scope='class')
  def drawn(self):
    """Both plots of `_SIZES`, read only."""
    return tuple(_figures({'num_examples': np.array(self._SIZES)}))

  def test_says_what_it_shows(self, drawn):
    ranks, histogram = drawn
    assert (ranks.name, histogram.name) == (
      'group_sizes_by_rank',
      'group_sizes',
    )
    assert ranks.alternative_text == (
      'Size of the groups against their rank. 11 groups, 20 examples; shares: '
      'largest group 50.0 %, largest 10 95.0 %, largest 10 % 55.0 %.'
    )
    assert histogram.alternative_text == (
      'How many groups are how large. Examples per group: from 1 to 10, '
      'median 1, 90 % of the groups have at most 1.'
    )
    for figure in (ranks, histogram):
      ElementTree.fromstring(figure.svg)
      assert image.imread(io.BytesIO(figure.png)).shape[:2] == (640, 800)
      assert figure.caption.endswith(figure.alternative_text.split('. ', 1)[1])

  def test_one_panel_for_each_measure(self):
    sizes = np.array([1, 2])
    for figure in _figures({'num_examples': sizes, 'num_words': sizes}):
      assert image.imread(io.BytesIO(figure.png)).shape[:2] == (640, 1600)

  @pytest.mark.parametrize(
    'sizes', [[123_456_789], [0], [0, 0, 5], [10**12, 1]]
  )
  def test_odd_sizes(self, sizes):
    for figure in _figures({'num_words': np.array(sizes)}):
      num_zeros = sizes.count(0)
      without = f'{num_zeros} group{"s" * (num_zeros > 1)} without words.'
      assert (f'Not shown: {without}' in figure.caption) == (num_zeros > 0)

  def test_many_groups_are_a_small_picture(self):
    # A marker for each would take megabytes.
    sizes = 10**9 // np.arange(1, 100_001)
    for figure in _figures({'num_words': sizes}):
      assert len(figure.svg) < 200_000

  def test_title_is_no_formula_and_drawable(self):
    for figure in _figures({'num_words': np.array([1])}, '$x^2$ \x00 by host'):
      ElementTree.fromstring(figure.svg)
      assert 'Not shown' not in figure.caption

  def test_equal_sizes_give_equal_files(self, drawn):
    again = _figures({'num_examples': np.array(self._SIZES)})
    for first, second in zip(drawn, again, strict=True):
      assert (first.svg, first.png) == (second.svg, second.png)


@pytest.mark.parametrize(
  ('value', 'label'),
  [
    (0.1, ''),
    (1, '1'),
    (1000, '1,000'),
    (100_000, '100,000'),
    (10**6, '1M'),
    (10**8, '100M'),
    (10**9, '1G'),
    (10**12, '1,000G'),
  ],
)
def test_tick_labels(value, label):
  assert group_size_plots._show_number(value) == label
