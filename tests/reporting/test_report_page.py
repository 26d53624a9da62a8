"""The page as a whole: self-contained, well-formed, safe, replaced whole."""

import html.parser
import os
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_runs import write_evaluation, write_run, write_sweep

from tff_fedfish.data.client_ids import client_id_to_text
from tff_fedfish.errors import UserError
from tff_fedfish.reporting import loading, page, report, scores

_VOID = {'meta', 'link', 'br', 'img', 'hr', 'input'}


class _Outline(html.parser.HTMLParser):
  """Collects tags, attributes and text, and checks the nesting."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.attributes, self.texts, self._open = [], [], [], []
    self.feed(text)
    self.close()
    assert not self._open, f'never closed: {self._open}'

  def handle_starttag(self, tag, attributes):
    self.tags.append(tag)
    self.attributes += attributes
    if tag not in _VOID:
      self._open.append(tag)

  def handle_startendtag(self, tag, attributes):
    self.tags.append(tag)
    self.attributes += attributes

  def handle_endtag(self, tag):
    assert self._open.pop() == tag

  def handle_data(self, data):
    self.texts.append(data)

  def values(self, name):
    return [value for key, value in self.attributes if key == name]


def _render(directories):
  """Renders the page without its plots, which take seconds."""
  table = scores.read_scores(loading.load_runs(directories))
  return page.render_page(table, {})


def _files(directory):
  """Returns the contents of all files below a directory, by name."""
  return {
    str(path.relative_to(directory)): path.read_bytes()
    for path in directory.rglob('*')
    if path.is_file()
  }


@pytest.fixture
def one_plot(tmp_path):
  """A run whose report has one plot and is written in no time."""
  directory = write_run(tmp_path / 'one_plot')
  (directory / 'metrics.csv').write_text('round,held_out/loss\n0,8.0\n1,7.0\n')
  return loading.load_runs([directory])


@pytest.fixture
def copied(report_of_pair, tmp_path):
  """A copy of the report that a test may change."""
  return shutil.copytree(report_of_pair, tmp_path / 'report')


def test_files_of_a_report(report_of_pair):
  figures = {
    *('differences', 'held_out_scores', 'held_out_before_after'),
    *('transfer_1_scores', 'transfer_1_before_after'),
    *('curves', 'cost', 'barrier'),
  }
  assert _files(report_of_pair).keys() == {
    *('index.html', 'summary.csv', 'comparisons.csv', 'clients.csv'),
    *('reproduce.sh', 'configs/average/config.json'),
    'configs/fish/config.json',
    *(f'figures/{n}.{end}' for n in figures for end in ('png', 'csv')),
  }


def test_page_is_well_formed_and_refers_to_nothing_outside(report_of_pair):
  text = (report_of_pair / 'index.html').read_text()
  outline = _Outline(text)
  assert not {'script', 'link', 'img', 'iframe', 'object'} & set(outline.tags)
  assert outline.values('src') == []
  links = outline.values('href') + outline.values('xlink:href')
  # To show the page needs none of the files that lie beside it.
  beside = {link for link in links if not link.startswith('#')}
  assert beside == {
    f'figures/{p.name}' for p in report_of_pair.glob('figures/*')
  }
  links = [link for link in links if link not in beside]
  assert 'url(http' not in text and '@import' not in text
  ids = outline.values('id')
  assert len(set(ids)) == len(ids)
  assert {link[1:] for link in links} <= set(ids)
  assert set(outline.values('aria-labelledby')) <= set(ids)
  # Every plot has words.
  assert outline.tags.count('figure') == outline.tags.count('svg') == 8
  assert len(outline.values('aria-label')) > 8


def test_the_answer_stands_on_top(report_of_pair):
  text = (report_of_pair / 'index.html').read_text()
  places = [
    text.index(part)
    for part in (
      '<h1>Federated pretraining: FedAvg and FedFish</h1>',
      '<p class="lead">The order is undecided: the mean loss of',
      '<h3>Loss of FedFish minus loss of FedAvg</h3>',
      'Method comparison on held-out clients',
      # (5.5 - 6 + 6.5 - 7 + 5 - 5 + 6 - 6) / 4.
      '<td>−0.250</td>',
      'Keep in mind',
      *('<h2 id="personalization"', '<h2 id="transfer"', '<h2 id="curves"'),
      *('<summary id="barrier"', 'What differs between the runs'),
      *('Configuration and environment', 'How to reproduce'),
      'fedfish train --config configs/average/config.json',
    )
  ]
  assert places == sorted(places)
  assert '2.14.1' in text
  # Its user's command, paths and other packages are no one else's business.
  assert '/home/ann' not in text and 'ann-secret' not in text
  # On a phone the columns after the fourth are folded.
  head = text[text.index('table-comparisons_1">\n<thead>') :]
  head = head[: head.index('</thead>')]
  assert head.count('<th ') == 8 and head.count('class="folded"') == 4


def test_all_commands_are_beside_the_page(report_of_pair):
  lines = (report_of_pair / 'reproduce.sh').read_text().splitlines()
  assert sum(line.startswith('fedfish train') for line in lines) == 2
  assert sum(line.startswith('fedfish evaluate') for line in lines) == 4
  assert lines[-1].startswith('fedfish report --runs runs/average runs/fish')
  paths = [line.split()[3] for line in lines if 'fedfish train' in line]
  assert all((report_of_pair / path).is_file() for path in paths)


def test_absent_sections_are_named(tmp_path):
  text = _render([write_run(tmp_path / 'run')])
  absent = text[text.index('Sections left out for lack of data: ') :]
  for title in ('Personalization of held-out clients', 'Transfer'):
    assert f'{title} (needs an evaluation on' in absent
    assert f'>{title}</h2>' not in text
  assert 'client by client (needs barriers of a method and of FedAvg' in absent
  assert 'What differs between the runs' not in text


def test_a_run_without_any_round(tmp_path):
  directory = write_run(tmp_path / 'run')
  (directory / 'metrics.csv').write_text('round\n')
  for name in ('timings.csv', 'starts.jsonl'):
    (directory / name).unlink()
  path = report.write_report(
    loading.load_runs([directory]), tmp_path / 'report'
  )
  text = path.read_text()
  assert '1 run without an evaluation: fedfish evaluate makes one.' in text
  assert 'no round is finished yet' in text
  assert not (path.parent / 'figures').exists()
  assert 'figures/' not in text


def _outline_of(root, corpus, client):
  """Returns the page about one client of another corpus."""
  directory = write_run(root / 'run')
  write_evaluation(
    directory,
    'e',
    kind='transfer',
    corpus=corpus,
    client_ids=(client,),
    losses={0.0: (6.0,), 0.5: (5.0,)},
  )
  return _Outline(_render([directory]))


@pytest.fixture(scope='module')
def plain_tags(tmp_path_factory):
  return _outline_of(tmp_path_factory.mktemp('runs'), 'plain', 'plain').tags


@settings(max_examples=8)
@given(
  name=st.text(min_size=1, max_size=20).filter(lambda t: t.strip()),
  client_id=st.binary(min_size=1, max_size=30),
)
def test_names_from_files_stay_text(
  tmp_path_factory, plain_tags, name, client_id
):
  root, client = tmp_path_factory.mktemp('runs'), client_id_to_text(client_id)
  outline = _outline_of(root, name, client)
  # Names of clients are in figures and CSV files only.
  assert any(name in text for text in outline.texts)
  assert outline.tags == plain_tags


def test_names_that_are_no_unicode_are_replaced(one_plot, tmp_path):
  # A path with a byte that is not UTF-8, as Python and JSON hold it.
  path = tmp_path / 'one_plot' / 'config.json'
  path.write_text(path.read_text().replace('corpora/debian', 'c\\udcff/debian'))
  written = report.write_report(
    loading.load_runs([path.parent]), tmp_path / 'report'
  )
  assert '<td>c?/debian</td>' in written.read_text(encoding='utf-8')


def test_an_earlier_report_is_replaced_whole(copied, one_plot):
  (copied / 'figures' / 'stale.png').touch()
  first = (copied / 'index.html').read_bytes()
  assert (copied / 'figures' / 'barrier.png').exists()
  report.write_report(one_plot, copied)
  assert {path.name for path in (copied / 'figures').iterdir()} == {
    'curves.png',
    'curves.csv',
  }
  assert (copied / 'index.html').read_bytes() != first
  # Neither the old nor a temporary directory is left.
  assert not list(copied.parent.glob('.*'))


def test_equal_runs_give_equal_reports(one_plot, pair, tmp_path):
  # One lies in an empty directory that a link names.
  (tmp_path / 'real').mkdir()
  (tmp_path / 'link').symlink_to(tmp_path / 'real')
  report.write_report(one_plot, tmp_path / 'link')
  assert (tmp_path / 'link').is_symlink()
  report.write_report(one_plot, tmp_path / 'again')
  first, second = (_files(tmp_path / name) for name in ('real', 'again'))
  assert first.keys() == second.keys()
  # Names, not files: they hold pictures.
  assert [name for name in first if first[name] != second[name]] == []
  assert _render(pair) == _render(pair)


def test_other_directories_are_left_alone(copied, tmp_path):
  (copied / 'notes.txt').touch()
  with pytest.raises(UserError, match="nothing else, but .* holds 'notes.txt'"):
    report.check_output(copied)
  (tmp_path / 'site').mkdir()
  page_of_mine = tmp_path / 'site' / 'index.html'
  page_of_mine.write_text('<html>My home page')
  with pytest.raises(UserError, match="also holds 'index.html'"):
    report.check_output(tmp_path / 'site')
  with pytest.raises(UserError, match='must be a directory, but'):
    report.check_output(page_of_mine)


def test_a_failure_while_writing_leaves_the_earlier_report(
  copied, one_plot, monkeypatch
):
  before, rename, renamed = _files(copied), os.rename, []

  def fail_once(path, new_path):
    renamed.append(new_path)
    if new_path == copied / 'index.html' and renamed.count(new_path) == 1:
      raise OSError(28, 'No space left on device')
    rename(path, new_path)

  # The last thing that happens: the page takes its place.
  monkeypatch.setattr('tff_fedfish.files.os.rename', fail_once)
  with pytest.raises(OSError, match='No space left'):
    report.write_report(one_plot, copied)
  assert _files(copied) == before
  assert not list(copied.parent.glob('.*'))


def test_repetitions_are_one_row(tmp_path):
  gains = {('fed_avg', 1, 2): 1.0, ('fed_fish', 1, 2): 2.0}
  text = _render(write_sweep(tmp_path, gains, num_seeds=3))
  # 8 - 2 - 0.1, and the extreme seeds.
  interval = '<span class="ci">5.800 to 6.000</span>'
  assert f'5.900{interval}' in text
  assert 'Runs that differ only in their seeds are averaged.' in text
  # Six runs are rows, not columns.
  differing = text[text.index('What differs between the runs') :]
  assert differing.count('<th scope="row">FedAvg, E = 1 (fed_avg-E1') == 3


def test_the_table_on_top_is_short(tmp_path):
  gains = {
    (name, epochs, 2): 1.0
    for name in ('fed_avg', 'fed_fish')
    for epochs in range(1, 15)
  }
  text = _render(write_sweep(tmp_path, gains, num_seeds=1))
  top, further = text.split('<summary id="comparisons">')
  # 14 pairs: 12, and the two of the most local epochs.
  assert top.count('<th scope="row">FedFish − FedAvg') == 12
  assert further.count('<th scope="row">FedFish − FedAvg') == 2
  assert '<a href="#comparisons">2 further rows: Further comparisons' in top
  title = 'Method comparison on held-out clients'
  assert f'{title}</p>' in top and f'{title}, further rows</p>' in further
  for note in ('Below 0 the method named first', '★: best mean'):
    assert text.count(note) == 1
