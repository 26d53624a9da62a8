"""`fedfish inspect` as a user meets it."""

import dataclasses
import pathlib
import re
import subprocess
import sys
import unicodedata

import pandas as pd
import pytest
from grouping_jobs import group_lines

from tff_fedfish.cli import inspect
from tff_fedfish.data.manifest import (
  DropExample,
  InputFile,
  Split,
  read_manifest,
)
from tff_fedfish.reporting import drawing
from tff_fedfish.reporting.plots import plot

_ROOT = pathlib.Path(__file__).parents[2]


COMMANDS = {'inspect': 'tff_fedfish.cli.inspect'}


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  """Eleven hosts of one word each, and one of two texts and nine words."""
  directory = tmp_path_factory.mktemp('inspect')
  lines = [{'text': 'a', 'url': f'http://host{i}/'} for i in range(11)]
  lines += [{'text': text, 'url': 'http://big/'} for text in ('b', 'c ' * 8)]
  return group_lines(directory, [*lines, b'{'], num_shards=1)


def _shown(capsys, manifest):
  inspect.print_counts('out', manifest)
  return capsys.readouterr().out


class TestNumbers:
  def test_percentiles_and_shares(self, fedfish, corpus):
    code, shown, errors = fedfish('inspect', corpus)
    assert (code, errors) == (0, '')
    # 12 groups, 13 examples; 99 % of 12 is 11.88: the twelfth.
    assert re.search(r'examples( +1){6}( +2){2} +1.1 *\n', shown)
    assert re.search(r'words( +1){6}( +9){2} +1.7 *\n', shown)
    # 9 of 20 words.
    assert re.search(r'\n +big +2 +9 +45.0% ', shown)

  def test_ten_largest(self, fedfish, corpus):
    shown = fedfish('inspect', corpus)[1]
    # Equal groups are in the order of their ids: host0, host1, host10, host2.
    assert 'host7' in shown
    assert 'host8' not in shown

  def test_example_of_a_group_of_median_size(self, fedfish, tmp_path):
    # By words the groups are of 1, 3 and 9.
    lines = [
      {'text': text, 'url': f'http://{host}/', 'timestamp': time}
      for host, text, time in [
        ('a', 'x', '2020'),
        ('b', 'c', '2021-05-05'),
        ('b', 'first\n\nof\x1b all', '2020-01-31'),
        ('c', 'z ' * 9, '2020'),
      ]
    ]
    shown = fedfish('inspect', group_lines(tmp_path, lines))[1]
    assert shown.endswith(
      'Example, from a group of median size: b, 2 examples, 2020-01-31 to '
      '2021-05-05\n  first of%1B all\n'
    )

  def test_small_groups_are_counted_beside_their_records(
    self, fedfish, tmp_path
  ):
    hosts = [*'aabbccc']
    lines = [{'text': 'x', 'url': f'http://{host}/'} for host in hosts]
    corpus = group_lines(tmp_path, lines, min_examples_per_group=3)
    shown = fedfish('inspect', corpus)[1]
    assert re.search(r'dropped: small_group \(2 groups\) +4 +group a', shown)


class TestControlCharacters:
  """Texts of strangers must not write titles or lines of their own."""

  _AUTHOR = 'A\x1b]0;PWN\x07\nC\0D'
  _SHOWN = 'A%1B]0;PWN%07%0AC%00D'

  def test_manifest(self, corpus, capsys):
    split = Split(name=self._AUTHOR, names=(self._AUTHOR,), rule=self._AUTHOR)
    manifest = dataclasses.replace(
      read_manifest(corpus),
      corpus=self._AUTHOR,
      key=self._AUTHOR,
      feature_names=('text', self._AUTHOR),
      split=split,
    )
    counts = dataclasses.replace(manifest.counts, drops={self._AUTHOR: 1})
    name = f'{self._AUTHOR}\ud800.gz'
    file = InputFile(name=name, records_in=1, records_out=0, damage='bad')
    manifest = dataclasses.replace(
      manifest,
      counts=counts,
      inputs=(file,),
      drop_examples={self._AUTHOR: DropExample(file=name, line=1)},
    )
    shown = _shown(capsys, manifest)
    assert shown.startswith(f'out: {self._SHOWN} by {self._SHOWN}\n')
    assert f'{self._SHOWN}?.gz, record 1 ' in shown
    assert f'\n{self._SHOWN}?.gz: bad, 0 records read.\n' in shown
    assert shown.count(self._SHOWN) == 9
    self._check(shown)

  def test_group_id(self, fedfish, tmp_path):
    # Three words in two examples, of which one text comes twice.
    lines = [
      {'text': text, 'url': 'http://a/', 'author': self._AUTHOR}
      for text in ('b', 'c d', 'b')
    ]
    corpus = group_lines(
      tmp_path, lines, num_shards=1, key='author', drop_duplicates=True
    )
    code, shown, errors = fedfish('inspect', corpus)
    assert (code, errors) == (0, '')
    assert re.search(rf'\n +{re.escape(self._SHOWN)} +2 +3 +100.0% ', shown)
    assert f'group {self._SHOWN} ' in shown
    self._check(shown)

  def _check(self, shown):
    controls = {c for c in shown if unicodedata.category(c) == 'Cc'}
    assert controls == {'\n'}


class TestCounts:
  def test_first_drop(self, corpus, capsys):
    manifest = read_manifest(corpus)
    counts = dataclasses.replace(
      manifest.counts, drops={'bad': 3, 'duplicate': 2, 'other': 1}
    )
    manifest = dataclasses.replace(
      manifest,
      counts=counts,
      drop_examples={
        'bad': DropExample(
          file='[f].gz', line=7, excerpt='{"a":\n\x1b[0m\ud800'
        ),
        'duplicate': DropExample(group='a.com', excerpt='x' * 100),
      },
    )
    shown = _shown(capsys, manifest)
    assert re.search(
      r'dropped: bad +3 +\[f\]\.gz, record 7 +\{"a":%0A%1B\[0m\? *\n', shown
    )
    assert re.search(r'dropped: duplicate +2 +group a\.com +x{59}… *\n', shown)
    assert re.search(r'dropped: other +1 *\n', shown)

  def test_damage(self, corpus, capsys):
    file = InputFile(
      name='a.gz',
      records_in=1001,
      records_out=1000,
      damage='corrupt_file',
      damage_byte=12345,
    )
    manifest = dataclasses.replace(read_manifest(corpus), inputs=(file,))
    assert _shown(capsys, manifest).endswith(
      '\na.gz: corrupt_file, 1,000 records read. It could be used up to byte '
      '12,345.\n'
    )

  def test_split(self, corpus, capsys):
    split = Split(name='train', names=('train', 'test'), rule='by date')
    manifest = dataclasses.replace(read_manifest(corpus), split=split)
    assert '\nSplit: train of train, test (by date).\n' in _shown(
      capsys, manifest
    )


class TestVocabulary:
  @pytest.fixture
  def vocabulary(self, tmp_path):
    path = tmp_path / 'vocab.txt'
    path.write_text('[PAD]\n[UNK]\n[END]\na\nb\n')
    return path

  def test_unknown_tokens_by_hand(self, fedfish, corpus, vocabulary):
    code, shown, errors = fedfish('inspect', corpus, '--vocabulary', vocabulary)
    assert code == 0
    # 11 x (a END), b END, 8 x UNK END: 8 of 22 + 2 + 9 tokens.
    assert f'\nUnknown tokens: {800 / 33:.2f} % (warning: above 5 %, ' in shown
    # The rest is what it is without a vocabulary.
    without = fedfish('inspect', corpus)[1]
    assert (
      ''.join(
        line
        for line in shown.splitlines(keepends=True)
        if not line.startswith('Unknown tokens: ')
      )
      == without
    )
    assert 'count tokens: client 12/12' in errors


class TestPlot:
  def test_writes_one_picture(self, fedfish, corpus, tmp_path):
    plot = tmp_path / 'sizes.png'
    plot.write_text('an earlier one')
    code, shown, _ = fedfish('inspect', corpus, '--plot', plot)
    assert code == 0
    assert shown.endswith(f'Plot: {plot}\n')
    assert plot.read_bytes().startswith(b'\x89PNG')
    assert list(tmp_path.iterdir()) == [plot]

  def test_ticks_within_a_decade(self):
    table = pd.DataFrame(dict(x=[1, 2, 4], y=[3, 5, 4]))
    words = dict(name='n', title='', caption='', x='', y='', kind='line')
    figure = drawing.draw(plot(table, log_x=True, log_y=True, **words))
    (axes,) = figure.axes
    ticks = axes.get_yticklabels(which='both')
    assert {'3', '4', '5'} <= {tick.get_text() for tick in ticks}
    assert not any('$' in tick.get_text() for tick in ticks)

  def test_directory_in_the_way(self, fedfish, corpus, tmp_path):
    code, shown, errors = fedfish('inspect', corpus, '--plot', tmp_path)
    assert (code, shown) == (2, '')
    assert errors == (
      f"fedfish: error: `--plot` must be a file to write, but '{tmp_path}' is "
      'none (Is a directory). Name another one, or change its permissions.\n'
    )

  def test_nothing_heavy_without_a_plot(self, corpus):
    program = (
      'import sys; from tff_fedfish.cli import inspect, main; '
      "main._COMMANDS = {'inspect': 'tff_fedfish.cli.inspect'}; "
      f"main.main(['inspect', {str(corpus)!r}]); "
      "print([m for m in ('tensorflow', 'apache_beam', 'matplotlib') "
      'if m in sys.modules])'
    )
    done = subprocess.run(
      [sys.executable, '-c', program],
      cwd=_ROOT,
      capture_output=True,
      text=True,
    )
    assert done.stdout.endswith('\n[]\n'), done.stderr
