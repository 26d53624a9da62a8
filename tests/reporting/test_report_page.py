"""The page: self-contained, well-formed, safe, its answer on top."""

import html
import html.parser
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_runs import (
  read_report,
  write_evaluation,
  write_run,
  write_sweep,
)

from tff_fedfish.data.client_ids import client_id_to_text
from tff_fedfish.reporting import loading, page, report

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
  return page.render_page(read_report(directories), {})


def _text(page_part):
  """Returns the words of a part of a page."""
  return ' '.join(html.unescape(re.sub('<[^>]*>', ' ', page_part)).split())


def _first_screen(directories):
  """Returns the words above the first figure."""
  return _text(_render(directories).split('<div class="plots">')[0])


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
  assert outline.tags.count('figure') == outline.tags.count('svg') == 7
  assert len(outline.values('aria-label')) > 7


def test_the_answer_stands_on_top(report_of_pair):
  text = (report_of_pair / 'index.html').read_text()
  places = [
    text.index(part)
    for part in (
      '<h1>Federated pretraining: FedAvg and FedFish</h1>',
      '<p class="lead">One seed, not a finding: the loss of FedFish was lower',
      # (5.5 - 6 + 6.5 - 7 + 5 - 5 + 6 - 6) / 4.
      'than that of FedAvg by 0.250 nats per token',
      *('It hurts 0', 'At equal bytes', 'Keep in mind', 'three_seeds.sh,'),
      *('Same settings: held-out clients', '>−0.250<'),
      *('At equal bytes: held', '<h3>FedFish minus FedAvg</h3>'),
      *('<h2 id="personalization"', '<h2 id="transfer"', '<h2 id="curves"'),
      *('<summary id="training"', 'What differs between the runs'),
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


def test_equal_runs_give_equal_pages(pair):
  assert _render(pair) == _render(pair)


def test_absent_sections_are_named(tmp_path):
  text = _render([write_run(tmp_path / 'run')])
  absent = text[text.index('Sections left out for lack of data: ') :]
  for title in ('Personalization of held-out clients', 'Transfer'):
    assert f'{title} (needs an evaluation on' in absent
    assert f'>{title}</h2>' not in text
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
  sentence = '1 run without an evaluation: fedfish evaluate makes one.'
  assert sentence in _text(text)
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


def test_eighteen_runs_answer_on_the_first_screen(tmp_path):
  gains = {
    (name, epochs, 2): gain * epochs
    for name, gain in (('fed_avg', 0.25), ('fed_fish', 0.5))
    for epochs in (1, 2, 4)
  }
  runs = write_sweep(tmp_path, gains)
  text = _first_screen(runs)
  for part in (
    # How sure; which, by how much: 8 - 2 and 8 - 1; on how many; at what cost.
    'The best of 3 against the best of 3, chosen on these clients, so without',
    'the loss of FedFish (E = 4, best of 3) was lower than that of FedAvg '
    '(E = 4, best of 3) by 1.000 nats per token on held-out clients',
    'its accuracy higher by 1.00 points; 2 clients, 3 seeds; uplink 4 against',
    # Whom it hurts, at equal bytes, at the same settings.
    'It hurts 0 % of the clients with FedFish and 0 % of the clients with',
    'At equal bytes, 4 models up and down (loss and accuracy point apart; '
    'chosen on held-out clients), the loss of FedFish was lower',
    'Of 3 comparisons with FedAvg at the same settings: FedFish has the lower '
    'loss in 3.',
    # What it does not say.
    'Keep in mind The best of several trials, chosen on the clients that are',
    *('Same settings: held-out clients', 'Each at its best: held-out clients'),
  ):
    assert part in text
  # 18 runs are rows, not columns.
  differing = _render(runs).split('What differs between the runs')[1]
  assert differing.count('<th scope="row">FedAvg, E') == 9


def test_one_run_has_a_mean_and_no_comparison(pair):
  text = _first_screen(pair[1:])
  # (5.5 + 6.5 + 5 + 6) / 4, and (5 + 6 + 4.5 + 4.5) / 4 on half of the data.
  for part in ('FedFish, E = 8', '5.750 nats per token', '5.000', '0 % of the'):
    assert part in text
  assert 'Same settings' not in text and 'Keep in mind' not in text


def test_the_tables_on_top_are_short(tmp_path):
  gains = {
    (name, epochs, 2): 1.0
    for name in ('fed_avg', 'fed_fish')
    for epochs in range(1, 11)
  }
  text = _render(write_sweep(tmp_path, gains, num_seeds=1))
  top, further = text.split('<summary id="comparisons">')
  # 10 pairs of the same settings: 8, and the two of the most local epochs.
  title = 'Same settings: held-out clients'
  same = top[top.index(f'{title}</p>') :]
  assert same[: same.index('</table>')].count('<th scope="row">') == 8
  same = further[further.index(f'{title}, further rows</p>') :]
  assert same[: same.index('</table>')].count('<th scope="row">') == 2
  assert 'further rows: Further comparisons</a>' in top
  for note in (
    'Everything that differs between two sides',
    'fraction of each client’s data',
  ):
    assert text.count(note) == 1
