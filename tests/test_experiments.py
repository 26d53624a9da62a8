"""The committed results are whole, and the pages say what they hold."""

import collections
import csv
import gzip
import hashlib
import itertools
import json
import pathlib
import random
import re
import subprocess
import urllib.parse

import numpy as np
import pytest
import result_tables

from tff_fedfish.sweeping.expand import expand_arms
from tff_fedfish.sweeping.sweep_file import read_sweep_file

_ROOT = pathlib.Path(__file__).parents[1]
_RESULTS = _ROOT / 'docs' / 'results'
# Their clients are owners.
_CODE_HOSTS = (
  *('github.com', 'gitlab.com', 'salsa.debian.org'),
  *('bitbucket.org', 'codeberg.org'),
)
_MANIFEST = json.loads((_RESULTS / 'manifest.json').read_text())


def _sweep(name):
  directory = 'configs' if name == 'debian' else 'docs/experiments/sweeps'
  return _ROOT / directory / f'{name}_sweep.py'


@pytest.mark.parametrize('name', _MANIFEST)
def test_files_are_those_that_were_made(name):
  directory = _RESULTS / name
  files = _MANIFEST[name]['files']
  assert sorted(path.name for path in directory.iterdir()) == sorted(files)
  for file, made in files.items():
    content = (directory / file).read_bytes()
    assert hashlib.sha256(content).hexdigest() == made['sha256'], file
    if 'num_rows' in made:
      rows = list(csv.reader(content.decode().splitlines()))
      assert len(rows) - 1 == made['num_rows'], file
  assert re.fullmatch('[0-9a-f]{40}', _MANIFEST[name]['commit'])


def test_results_are_small():
  paths = [p for p in _RESULTS.rglob('*') if p.is_file()]
  assert len(paths) <= 60
  assert sum(path.stat().st_size for path in paths) <= 3 * 2**20


@pytest.mark.parametrize(
  'name',
  [
    name
    for name, made in _MANIFEST.items()
    # Other sweeps are in the project at the commit of their results.
    if 'num_runs' in made and _sweep(name).exists()
  ],
)
def test_runs_are_those_of_the_sweep(name):
  sweep = json.loads((_RESULTS / name / 'sweep.json').read_text())
  file = read_sweep_file(_sweep(name))
  chosen = {
    repr(sorted(choice['for'].items())): choice['chosen']
    for choice in sweep['learning_rates']
  }
  arms, made = expand_arms(file), _MANIFEST[name]
  assert len(arms) == made.get('num_planned_runs', made['num_runs'])
  names = [entry['name'] for entry in sweep['arms']]
  assert len(names) == made['num_runs']
  arms = [arm for arm in arms if arm.name in names]
  assert [arm.name for arm in arms] == names
  for arm, entry in zip(arms, sweep['arms'], strict=True):
    search = file.search
    group = sorted(search.group_of(arm.point).items()) if search else None
    rates = chosen[repr(group)] if search else {}
    assert entry['settings'] == arm.point | rates
  with open(_RESULTS / name / 'summary.csv', newline='') as file:
    runs = {row['directory'] for row in csv.DictReader(file)}
  assert runs == {arm.name for arm in arms}


class TestPages:
  """The pages with tables of results."""

  @pytest.fixture(params=result_tables.PAGES, ids=lambda path: path.stem)
  def page(self, request):
    return request.param.read_text('utf-8')

  def test_tables_are_those_of_the_results(self, page):
    assert result_tables.with_tables(page) == page

  def test_a_changed_number_is_found(self, page):
    changed = re.sub(r'(\| [^|]*)5 \|$', r'\g<1>6 |', page, flags=re.MULTILINE)
    assert changed != page
    assert result_tables.with_tables(changed) == page

  def test_intervals_in_sentences_stand_in_a_table(self, page):
    lines = page.splitlines()
    tables = '\n'.join(line for line in lines if line.startswith('|'))
    text = ' '.join(line for line in lines if not line.startswith('|'))
    for number in re.findall(r'[+−][\d.]+ ± [\d.]*\d', text):
      assert number in tables


def test_every_listed_comparison_is_shown():
  with open(_ROOT / 'docs' / 'experiments' / 'tables.csv', newline='') as file:
    listed = {row['table'] for row in csv.DictReader(file)}
  shown = [
    name
    for path in result_tables.PAGES
    for name in re.findall(r'<!-- (\w+):', path.read_text('utf-8'))
  ]
  assert sorted(shown) == sorted(listed)


def test_interval_over_writers_and_seeds():
  with open(_RESULTS / 'mnist_regime' / 'comparisons.csv') as file:
    (row,) = (
      row
      for row in csv.DictReader(file)
      if row['setting'] == 'E = 16'
      and row['method'].startswith('FedFish (fisher_power 1.0')
      and 'client learning rate 0.001' in row['method']
      and row['baseline'] == 'FedAvg (client learning rate 0.001)'
      and (row['fraction'], row['measure']) == ('0.0', 'accuracy')
    )
  mean, low, high = (
    f'{100 * float(row[name]):.2f}'.replace('-', '−')
    for name in ('mean', 'ci_low', 'ci_high')
  )
  text = (_ROOT / 'docs' / 'experiments' / 'images.md').read_text('utf-8')
  assert f'by {mean} ({low} to {high})' in ' '.join(text.split())


def _sentences(text):
  parts = re.split(r'\n\s*\n|(?<=[.!?])\s+', text)
  return [part.strip() for part in parts if len(part.strip()) >= 40]


def test_overlap_of_hosts():
  documents, homes = collections.defaultdict(list), collections.defaultdict(set)
  shards = _ROOT / 'tff_fedfish' / 'corpora' / 'debian_descriptions'
  for path in sorted(shards.glob('c4-train.*.json.gz')):
    for line in gzip.open(path, 'rt'):
      row = json.loads(line)
      url = urllib.parse.urlsplit(row['url'])
      host = url.netloc.lower()
      if host in _CODE_HOSTS:
        host += '/' + url.path.strip('/').split('/')[0].lower()
      sentences = _sentences(row['text'])
      documents[host].append(sentences)
      for sentence in sentences:
        homes[sentence].add(host)
  generator, rows = random.Random(1), []
  for host, texts in documents.items():
    if len(texts) < 4:
      continue
    generator.shuffle(texts)
    half = -(-len(texts) // 2)
    tuned = set(itertools.chain(*texts[half:]))
    scored = list(itertools.chain(*texts[:half]))
    own = sum(len(s) for s in scored if s in tuned)
    others = sum(len(s) for s in scored if homes[s] != {host})
    if scored:
      rows.append((sum(map(len, scored)), own, others))
  lengths, own, others = np.array(rows).T
  # Over all characters, and the mean over hosts.
  low, high = sorted((own.sum() / lengths.sum(), (own / lengths).mean()))
  other = sorted((others.sum() / lengths.sum(), (others / lengths).mean()))
  top = np.quantile(own / lengths, 0.9)
  text = (_ROOT / 'docs' / 'experiments' / 'text.md').read_text('utf-8')
  assert re.search(
    f'{100 * low:.0f} to {high:.0%} stand .*{top:.0%} or more.*'
    f'{100 * other[0]:.0f} to {other[1]:.0%} in another client',
    ' '.join(text.replace(' %', '%').split()),
  )


class TestArchive:
  def _make(self, *arguments):
    return subprocess.run(
      ['make', 'results-archive', *arguments],
      cwd=_ROOT,
      capture_output=True,
      text=True,
      check=False,
    )

  def test_without_a_commit(self):
    answer = self._make()
    assert answer.returncode == 2
    assert 'COMMIT=... is required' in answer.stderr

  def test_of_an_unknown_commit(self):
    answer = self._make('COMMIT=0000000')
    assert answer.returncode == 2
    assert 'COMMIT 0000000 is not in this clone' in answer.stderr


def test_pages_are_short_and_named_in_the_index():
  paths = [_ROOT / 'docs' / 'experiments.md']
  paths += sorted((_ROOT / 'docs' / 'experiments').glob('*.md'))
  texts = [path.read_text('utf-8') for path in paths]
  assert len(texts[0].split()) <= 500
  assert sum(len(text.split()) for text in texts) <= 9000
  for path in paths[1:]:
    assert f'(experiments/{path.name})' in texts[0]
