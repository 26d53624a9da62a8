"""The page as a whole: self-contained, well-formed, safe, replaced whole."""

import html.parser
import pathlib
import re
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tff_fedfish.data.client_ids import client_id_to_text
from tff_fedfish.errors import UserError
from tff_fedfish.reporting import (
  comparisons,
  loading,
  page,
  repetitions,
  report,
)

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


def _render(runs):
  """Renders the page without its plots, which take seconds."""
  return page.render_page(runs, runs, comparisons.compare_methods(runs), {})


@pytest.fixture
def written(report_of_pair):
  """The report's directory; read only."""
  return report_of_pair


@pytest.fixture
def one_plot(tmp_path, write_run):
  """A run whose report has one plot and is therefore written in no time."""
  directory = write_run(tmp_path / 'one_plot')
  (directory / 'metrics.csv').write_text('round,held_out/loss\n0,8.0\n1,7.0\n')
  return loading.load_runs([directory])


@pytest.fixture
def copied(written, tmp_path):
  """A copy of the report that a test may change."""
  return pathlib.Path(shutil.copytree(written, tmp_path / 'report'))


def test_files_of_a_report(written):
  found = {
    str(path.relative_to(written)): path
    for path in written.rglob('*')
    if path.is_file()
  }
  assert {name for name in found if '/' not in name} == {
    'index.html',
    'summary.csv',
    'comparisons.csv',
    'reproduce.py',
  }
  pictures = {
    'curve_held_out_loss.png',
    'curve_held_out_accuracy.png',
    'curve_train_loss.png',
    'held_out_loss.png',
    'held_out_accuracy.png',
    'held_out_before_after.png',
    'transfer_loss.png',
    'transfer_accuracy.png',
    'transfer_before_after.png',
    'barrier_loss.png',
    'barrier_error.png',
    'communication_uplink.png',
    'communication_total.png',
  }
  assert {name.removeprefix('figures/') for name in found if '/' in name} == {
    *pictures,
    *(picture.replace('.png', '.csv') for picture in pictures),
  }


def test_page_is_well_formed_and_refers_to_nothing_outside(written):
  text = (written / 'index.html').read_text()
  outline = _Outline(text)
  assert not {'script', 'link', 'img', 'iframe', 'object'} & set(outline.tags)
  assert outline.values('src') == []
  links = outline.values('href') + outline.values('xlink:href')
  # To show the page needs none of the files that lie beside it.
  beside = {link for link in links if not link.startswith('#')}
  assert beside == {f'figures/{p.name}' for p in written.glob('figures/*')}
  links = [link for link in links if link not in beside]
  assert 'url(http' not in text and '@import' not in text
  ids = outline.values('id')
  assert len(set(ids)) == len(ids)
  assert {link[1:] for link in links} <= set(ids)
  assert set(outline.values('aria-labelledby')) <= set(ids)


def test_every_plot_has_alternative_text_and_a_numbered_caption(written):
  text = (written / 'index.html').read_text()
  outline = _Outline(text)
  assert outline.tags.count('figure') == outline.tags.count('svg') == 13
  assert len(outline.values('aria-label')) >= 13
  assert all(f'<b>Figure {k}.</b>' in text for k in range(1, 14))
  assert '<b>Figure 14.</b>' not in text


def test_page_shows_numbers_and_sections_in_order(written):
  text = (written / 'index.html').read_text()
  # The navigation and the summary name some of them earlier.
  places = [
    text.index(part)
    for part in (
      '<h1>Federated pretraining: FedAvg and FedFish</h1>',
      'At equal settings FedFish minus FedAvg is undecided',
      'id="results"',
      '>5.750</span>',
      'id="comparisons"',
      'id="learning-curves"',
      'id="local-epochs"',
      'id="personalization"',
      'id="transfer"',
      'id="clients"',
      'id="barrier"',
      'id="communication"',
      'id="differences"',
      'id="configuration"',
      'id="environment"',
      'id="reproduce"',
      '<span>fedfish train</span>',
    )
  ]
  assert places == sorted(places)


@pytest.mark.usefixtures('drawn')
def test_absent_sections_say_why(tmp_path, write_run):
  directory = write_run(tmp_path / 'run')
  (directory / 'environment.json').unlink()
  runs = loading.load_runs([directory])
  sections = page.build_sections(runs)
  text = page.render_page(
    runs, runs, comparisons.compare_methods(runs), sections
  )
  absent = dict(
    re.findall('<h2 id="(.*?)">.*?</h2>\n<p class="absent">(.*?)</p>', text)
  )
  assert not absent.keys() & {'learning-curves', 'communication'}
  assert 'not two numbers of local epochs' in absent['local-epochs']
  assert 'no run has an evaluation on held-out' in absent['personalization']
  assert 'no run has an evaluation on another' in absent['transfer']
  assert 'per_client.csv' in absent['clients']
  assert 'barrier.csv' in absent['barrier']
  assert 'no run has an environment.json' in absent['environment']
  assert 'the report holds one run' in text


def test_a_run_without_any_round(tmp_path, write_run):
  directory = write_run(tmp_path / 'run')
  (directory / 'metrics.csv').write_text('round\n')
  (directory / 'timings.csv').unlink()
  path = report.write_report(
    loading.load_runs([directory]), tmp_path / 'report'
  )
  text = path.read_text()
  assert 'No results: no run has finished a round' in text
  assert 'no round is finished yet' in text
  assert not (path.parent / 'figures').exists()


@pytest.fixture(scope='module')
def plain_tags(tmp_path_factory, write_run, write_evaluation):
  """Tags of the page about one client of one corpus, both named 'plain'."""
  directory = write_run(tmp_path_factory.mktemp('runs') / 'run')
  _write_transfer(write_evaluation, directory, 'plain', 'plain')
  return _Outline(_render(loading.load_runs([directory]))).tags


def _write_transfer(write_evaluation, directory, corpus, client):
  write_evaluation(
    directory,
    'e',
    kind='transfer',
    corpus=corpus,
    client_ids=(client,),
    losses={0.0: (6.0,), 0.5: (5.0,)},
  )


@settings(max_examples=25)
@given(
  name=st.text(min_size=1, max_size=20).filter(lambda t: t.strip()),
  client_id=st.binary(min_size=1, max_size=30),
)
def test_names_from_files_stay_text(
  tmp_path_factory, write_run, write_evaluation, plain_tags, name, client_id
):
  directory = write_run(tmp_path_factory.mktemp('runs') / 'run')
  client = client_id_to_text(client_id)
  _write_transfer(write_evaluation, directory, name, client)
  outline = _Outline(_render(loading.load_runs([directory])))
  assert client in outline.texts
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
  assert (copied / 'figures' / 'barrier_error.png').exists()
  report.write_report(one_plot, copied)
  assert {path.name for path in (copied / 'figures').iterdir()} == {
    'curve_held_out_loss.png',
    'curve_held_out_loss.csv',
  }
  assert (copied / 'index.html').read_bytes() != first
  # Neither the old nor a temporary directory is left.
  assert [p.name for p in copied.parent.iterdir() if p.name[0] == '.'] == []


def test_equal_runs_give_equal_reports(written, pair, tmp_path):
  again = report.write_report(loading.load_runs(pair), tmp_path / 'again')
  first, second = (
    {
      path.relative_to(directory): path.read_bytes()
      for path in directory.rglob('*')
      if path.is_file()
    }
    for directory in (written, again.parent)
  )
  assert first.keys() == second.keys()
  # Names, not files: they hold pictures.
  assert [name for name in first if first[name] != second[name]] == []


def test_output_may_be_an_empty_or_a_linked_directory(one_plot, tmp_path):
  (tmp_path / 'real').mkdir()
  (tmp_path / 'link').symlink_to(tmp_path / 'real')
  assert report.write_report(one_plot, tmp_path / 'link').is_file()
  assert (tmp_path / 'link').is_symlink()
  assert (tmp_path / 'real' / 'index.html').is_file()


def test_output_with_other_files_is_left_alone(tmp_path):
  output = tmp_path / 'thesis'
  output.mkdir()
  (output / 'chapter.tex').write_text('x')
  with pytest.raises(UserError, match="`--output` must .*'chapter.tex'"):
    report.check_output(output)


def test_a_page_of_somebody_else_is_left_alone(tmp_path):
  (tmp_path / 'index.html').write_text('<html>My home page')
  with pytest.raises(UserError, match="also holds 'index.html'"):
    report.check_output(tmp_path)


def test_a_report_with_something_added_is_left_alone(copied):
  (copied / 'notes.txt').touch()
  with pytest.raises(UserError, match="nothing else, but .* holds 'notes.txt'"):
    report.check_output(copied)


def test_output_that_cannot_be_written():
  # Not even root can create files there.
  if not pathlib.Path('/proc/self').exists():
    pytest.skip('this system has no /proc')
  with pytest.raises(UserError, match="`--output` must be writable, but '/pro"):
    report.check_output('/proc/report')


def test_output_that_is_a_file(tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(UserError, match='must be a directory, but'):
    report.check_output(tmp_path / 'file')


def test_a_failure_while_writing_leaves_the_earlier_report(
  copied, one_plot, monkeypatch
):
  before = {p: p.read_bytes() for p in copied.rglob('*') if p.is_file()}

  def fail(*_):
    raise OSError(28, 'No space left on device')

  # The last thing that happens: the new directory takes its place.
  monkeypatch.setattr('tff_fedfish.files.os.chmod', fail)
  with pytest.raises(OSError, match='No space left'):
    report.write_report(one_plot, copied)
  after = {p: p.read_bytes() for p in copied.rglob('*') if p.is_file()}
  assert after == before
  assert [p.name for p in copied.parent.iterdir() if p.name[0] == '.'] == []


def test_repetitions_are_one_row_and_every_run_is_kept(tmp_path, write_sweep):
  runs = loading.load_runs(
    write_sweep(
      tmp_path,
      {('fed_avg', 1, 2): 1.0, ('fed_fish', 1, 2): 2.0},
      num_seeds=3,
    )
  )
  pooled = repetitions.pool_repetitions(runs)
  text = page.render_page(runs, pooled, comparisons.compare_methods(runs), {})
  outline = _Outline(text)
  assert 'over clients and 3 seeds, crossed' in text
  assert 'FedFish, E = 1 (3 seeds)' in ''.join(outline.texts)
  # 8 - 2 - 0.1.
  assert '>5.900</span><span class="ci">5.800 to 6.000</span>' in text
  # Percentiles and the like are in summary.csv only.
  assert not any('p90' in words for words in outline.texts)
  before, every_run = text.split('<summary>Every run</summary>')
  assert 'fed_fish-E1-R2-seed1' not in before
  assert every_run.count('<span class="name roomy">fed_fish-E1-R2-seed1<') == 3
  # Six runs are rows, not columns.
  differing = text[text.index('id="differences"') :]
  assert differing.count('<th scope="row">FedAvg, E = 1 (fed_avg-E1') == 3
  ids = outline.values('id')
  assert len(set(ids)) == len(ids)
  assert set(outline.values('aria-labelledby')) <= set(ids)


def test_one_run_has_all_that_one_run_can_have(pair, drawn):
  runs = loading.load_runs(pair[:1])
  found = {n: len(figures) for n, figures in page.build_sections(runs).items()}
  assert found == {
    'learning-curves': 3,
    'personalization': 2,
    'transfer': 2,
    'own-tests': 0,
    'clients': 2,
    'local-epochs': 0,
    'barrier': 1,
    'communication': 2,
  }
  text = page.render_page(
    runs,
    runs,
    comparisons.compare_methods([]),
    {},
  )
  assert 'Mean loss (nats per token) of FedAvg, E = 8' in text
