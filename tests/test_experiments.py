"""The committed results are whole, and the documents say what they hold."""

import csv
import hashlib
import json
import pathlib
import re
import subprocess

import adamw_tables
import coarse_fisher_tables
import pytest
import result_tables

from tff_fedfish.sweeping.expand import expand_arms
from tff_fedfish.sweeping.sweep_file import read_sweep_file

_ROOT = pathlib.Path(__file__).parents[1]
_PAGES = _ROOT / 'docs' / 'experiments'
_MANIFEST = json.loads((result_tables.RESULTS / 'manifest.json').read_text())


def _sweep(name):
  directory = 'configs' if name == 'debian' else 'docs/experiments/sweeps'
  return _ROOT / directory / f'{name}_sweep.py'


def _page(name):
  return (_PAGES / f'{name}.md').read_text('utf-8')


@pytest.mark.parametrize('name', _MANIFEST)
def test_files_are_those_that_were_made(name):
  directory = result_tables.RESULTS / name
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
  paths = [p for p in result_tables.RESULTS.rglob('*') if p.is_file()]
  assert len(paths) <= 70
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
  sweep = json.loads((result_tables.RESULTS / name / 'sweep.json').read_text())
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
  with open(result_tables.RESULTS / name / 'summary.csv', newline='') as file:
    runs = {row['directory'] for row in csv.DictReader(file)}
  assert runs == {arm.name for arm in arms}


def test_tables_of_adamw_clients():
  text = _page('adamw_clients')
  one_model = 'debian_one_model', 'debian_one_model_nesterov'
  for rows in (
    coarse_fisher_tables.table('debian_coarse_adamw'),
    coarse_fisher_tables.table('debian_coarse_adamw', against='debian_coarse'),
    adamw_tables.controls_table('debian_adamw_controls'),
    adamw_tables.losses_table(*one_model),
    adamw_tables.differences_table(*one_model),
  ):
    assert len(rows) >= 3
    assert '\n'.join(rows) in text


def test_tables_of_coarse_weights():
  text = _page('coarse_fisher')
  for rows in (
    coarse_fisher_tables.table('debian_coarse'),
    coarse_fisher_tables.table('debian_coarse_sgd'),
    coarse_fisher_tables.table('mnist_coarse', accuracy=True),
    coarse_fisher_tables.bits_table('debian_bits', 'debian_coarse'),
  ):
    assert len(rows) >= 3
    assert '\n'.join(rows) in text


def test_tables_of_the_laboratory():
  text = _page('fedfish')
  for rows in result_tables.laboratory('mnist_laboratory'):
    assert len(rows) == 6
    assert '\n'.join(rows) in text


def test_table_of_regimes():
  for rows, count in (
    (result_tables.regimes('mnist_regime', (0.0, 0.5)), 6),
    (result_tables.equal_bytes('mnist_regime'), 6),
    (result_tables.controls('mnist_controls', 'mnist_regime'), 8),
  ):
    assert len(rows) == count
    assert '\n'.join(rows) in _page('fedfish')


@pytest.mark.parametrize('name', ['debian_regime', 'debian_small_rate'])
def test_table_of_text(name):
  columns = [('held_out', fraction) for fraction in (0.0, 0.25, 0.5)]
  columns += [('transfer/sotu_by_president', f) for f in (0.0, 0.5)]
  rows = result_tables.arms(name, tuple(columns))
  assert len(rows) == 4
  assert '\n'.join(rows) in _page('fedfish_text')


def test_table_of_baselines():
  rows = result_tables.baselines('fashion_mnist_baselines')
  assert len(rows) == 9
  assert '\n'.join(rows) in _page('baselines')


def test_table_of_server_rates():
  rows = result_tables.server_rates('debian_small_rate', 'debian_controls')
  assert len(rows) == 13
  assert '\n'.join(rows) in _page('fedfish_text')


def test_cohorts_of_the_laboratory():
  path = result_tables.RESULTS / 'mnist_laboratory' / 'laboratory.csv'
  with open(path, newline='') as opened:
    cohorts = {
      (row['client_work.learning_rate'], row['seeds.cohort_seed'])
      for row in csv.DictReader(opened)
    }
  assert len(cohorts) == _MANIFEST['mnist_laboratory']['num_cohorts']


def test_tables_of_mnist_by_writer():
  found, text = (
    result_tables.numbers('mnist_by_writer'),
    _page('mnist_by_writer'),
  )
  for fraction in (0.0, 0.25, 0.5):
    assert '\n'.join(result_tables.local_epochs(found, fraction)) in text
  assert '\n'.join(result_tables.rounds(found)) in text
  assert '\n'.join(result_tables.search(found)) in text


def test_readme_quotes_the_answer():
  readme, index = (
    ' '.join((_ROOT / name).read_text('utf-8').split())
    for name in ('README.md', 'docs/experiments.md')
  )
  [answer] = re.findall(
    r'\*\*(With SGD clients and Adam at the server, .*?)\*\*', index
  )
  assert f'**{answer}**' in readme


def test_tables_of_the_paper():
  _, *sections = re.split('^## Table ', _page('paper'), flags=re.MULTILINE)
  lines = {text[0]: text.splitlines() for text in sections}
  path = result_tables.RESULTS / 'paper' / 'fed_fish_results.csv'
  with open(path, newline='') as file:
    for row in csv.DictReader(file):
      start = f'| {row["corpus"]} | {row["num_local_epochs"]} | '
      found = [x for x in lines[row['table']] if x.startswith(start)]
      for share in ('0', '0.25', '0.5'):
        scores = [row[f'{score} {share}'] for score in ('accuracy', 'loss')]
        cell = ' / '.join(filter(None, scores))
        assert any(f'| {cell}' in line for line in found), (row, cell)


def test_tables_of_debian():
  found, text = result_tables.numbers('debian'), _page('debian')
  for corpus in ('', 'sotu_by_president', 'stack_exchange'):
    for fraction in (0.0, 0.5):
      rows = result_tables.local_epochs(found, fraction, corpus)
      assert len(rows) == 5
      assert '\n'.join(rows) in text, (corpus, fraction)
  assert '\n'.join(result_tables.rounds(found)) in text
  assert '\n'.join(result_tables.search(found)) in text


@pytest.mark.parametrize(
  ('name', 'page', 'num_variants'),
  [
    ('debian_ablations', 'debian', 4),
    ('mnist_by_writer_ablations', 'fed_fish_choices', 9),
  ],
)
def test_tables_of_ablations(name, page, num_variants):
  found = result_tables.numbers(name)
  for fraction in (0.0, 0.5):
    rows = result_tables.variants(found, fraction)
    assert len(rows) == num_variants
    assert '\n'.join(rows) in _page(page)


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


@pytest.mark.parametrize('path', sorted(_PAGES.glob('*.md')), ids=str)
def test_pages_are_short_and_named_in_the_index(path):
  index = (_ROOT / 'docs' / 'experiments.md').read_text('utf-8')
  assert len(path.read_text('utf-8').splitlines()) <= 200
  assert f'(experiments/{path.name})' in index
  assert len(index.splitlines()) <= 150
