"""Own test rows: tables of clients, curves, bars, affinities."""

import csv
import io
import json

import numpy as np
import pandas as pd
import pytest

from tff_fedfish.errors import UserError
from tff_fedfish.reporting import (
  affinities,
  comparisons,
  curves,
  headline,
  loading,
  own_tests,
  page,
  repetitions,
  report,
  settings,
  tables,
)
from tff_fedfish.reporting.runs import OWN_TEST, models_in_words

_IDS = ('a.org', 'b.org', 'c.org')


def _add_model(evaluation, model):
  path = evaluation / 'per_client.csv'
  header, *rows = path.read_text().splitlines()
  lines = [f'{header},model', *(f'{row},{model}' for row in rows)]
  path.write_text('\n'.join(lines) + '\n')


def _add_affinities(evaluation, rows):
  lines = ['client_id,cluster,candidate_id,affinity']
  lines += [','.join(map(str, row)) for row in rows]
  (evaluation / 'affinity.csv').write_text('\n'.join(lines) + '\n')


@pytest.fixture(name='write_scored')
def _write_scored(tmp_path, write_run, write_evaluation):
  def write(
    name, algorithm, losses, model='personal', seed=1, ids=_IDS, affinity=()
  ):
    run = write_run(
      tmp_path / name,
      algorithm=algorithm,
      settings={'seeds.model_seed': seed},
      held_out_losses=(8.0, 7.0, 6.5) if model == 'global' else (None,) * 3,
    )
    evaluation = write_evaluation(
      run, 'own', kind='own_test', losses={0.0: losses}, client_ids=ids
    )
    _add_model(evaluation, model)
    if affinity:
      _add_affinities(evaluation, affinity)
    return run

  return write


@pytest.fixture(name='pair_of_models')
def _pair_of_models(write_scored):
  average = write_scored('average', 'fed_avg', (6.0, 5.0, 4.0), 'global')
  own = write_scored('own', 'local_only', (3.0, 4.0), ids=('a.org', 'b.org'))
  return loading.load_runs([average, own])


def test_clients_side_by_side_by_hand(pair_of_models):
  [table] = own_tests.client_tables(pair_of_models)
  assert table.headings() == (
    [
      ('FedAvg, E = 1 (global model)', 2),
      ('Local models, E = 1 (personal model)', 4),
    ],
    [
      *('Accuracy (%)', 'Loss', 'Accuracy (%)', 'Loss'),
      *('Accuracy − FedAvg, E = 1 (points)', 'Loss − FedAvg, E = 1'),
    ],
  )
  # Accuracy is (10 - loss) / 100: 4 % and 7 %, so +3 points at 3 - 6 nats.
  assert dict(table.rows()) == {
    'a.org': ['4.0', '6.000', '7.0', '3.000', '+3.0', '−3.000'],
    'b.org': ['5.0', '5.000', '6.0', '4.000', '+1.0', '−1.000'],
    'c.org': ['6.0', '4.000', *'––––'],
  }
  means = [mean for mean, _ in table.means()]
  # Of the differences over the two clients that both have: (3 + 1) / 2.
  assert means == ['5.0', '5.000', '6.5', '3.500', '+2.0', '−2.000']
  intervals = [interval for _, interval in table.means()]
  assert intervals[1] == '4.750 to 5.250'
  assert intervals[5] == '−3.000 to −1.000'


def test_csv_has_every_client(pair_of_models):
  text = own_tests.own_tests_csv(own_tests.client_tables(pair_of_models))
  rows = list(csv.DictReader(io.StringIO(text)))
  assert [row['client_id'] for row in rows] == [*_IDS, 'a.org', 'b.org']
  assert [row['model'] for row in rows] == ['global'] * 3 + ['personal'] * 2
  assert rows[0]['baseline'] == rows[0]['loss_difference'] == ''
  assert rows[3]['baseline'] == 'FedAvg, E = 1'
  assert float(rows[3]['accuracy_difference']) == pytest.approx(0.03)


def test_no_difference_between_other_seeds(write_scored):
  runs = loading.load_runs(
    [
      write_scored('average', 'fed_avg', (6.0, 5.0, 4.0), 'global', seed=1),
      write_scored('own', 'local_only', (3.0, 4.0, 5.0), seed=2),
    ]
  )
  [table] = own_tests.client_tables(runs)
  assert [one.baseline for one in table.runs] == ['', '']


def test_differences_are_of_the_seeds_that_both_have(write_scored):
  scores = {1: (6.0, 5.0, 4.0), 2: (8.0, 7.0, 6.0)}
  runs = [
    write_scored(f'a{s}', 'fed_avg', x, 'global', s) for s, x in scores.items()
  ]
  runs.append(write_scored('own', 'local_only', (3.0, 4.0, 5.0), seed=2))
  pooled = repetitions.pool_repetitions(loading.load_runs(runs))
  [table] = own_tests.client_tables(pooled)
  average, own = table.runs
  assert average.clients['loss'].tolist() == [7.0, 6.0, 5.0]
  # Not 3 - 7: seed 1 has no local models.
  assert own.differences['loss'].tolist() == [-5.0, -3.0, -1.0]
  assert own.means['loss']['mean'] == pytest.approx(-3.0)


def test_other_clients_have_a_table_of_their_own(tmp_path, write_scored):
  first = write_scored('first', 'local_only', (3.0, 4.0, 5.0))
  second = write_scored('second', 'fed_avg', (3.0, 4.0, 5.0), 'global')
  config = json.loads((second / 'config.json').read_text())
  config['seeds']['split_seed'] = 9
  (second / 'config.json').write_text(json.dumps(config))
  found = own_tests.client_tables(loading.load_runs([first, second]))
  assert [t.setting for t in found] == [
    'seeds.split_seed = 3',
    'seeds.split_seed = 9',
  ]


def test_a_page_with_many_clients(tmp_path, write_scored):
  ids = tuple(f'client{n:02d}' for n in range(32))
  run = write_scored('own', 'local_only', (3.0,) * 32, ids=ids)
  text = report.write_report(loading.load_runs([run]), tmp_path / 'report')
  shown = text.read_text()
  assert '2 further clients in own_tests.csv' in shown
  assert '(personal model)' in shown
  assert 'client29</span>' in shown and 'client30</span>' not in shown
  lines = (tmp_path / 'report' / 'own_tests.csv').read_text().splitlines()
  assert len(lines) == 1 + 32
  # The same again: the CSV file is one of the report's own.
  report.write_report(loading.load_runs([run]), tmp_path / 'report')


def test_words_of_the_subject(pair_of_models):
  assert models_in_words(pair_of_models) == (
    'Personal models: Local models, E = 1. Global model: FedAvg, E = 1.'
  )
  found = comparisons.compare_methods(pair_of_models)
  assert headline.headline(pair_of_models, found) == (
    'At equal settings Local models is lower than FedAvg by 2.000 (1.000 to '
    '3.000) nats per token on own test rows.'
  )
  columns = tables.build_main_table(pair_of_models)
  own = [c for c in columns if c.panel == 'own_test']
  assert [(c.measure, c.heading) for c in own] == [
    ('loss', ''),
    ('accuracy', ''),
  ]
  headings, _ = tables.main_table(pair_of_models)
  assert 'Own test rows\nLoss' in headings


def test_bars_have_no_fractions(pair_of_models, drawn):
  loss, accuracy = page.build_sections(pair_of_models)['own-tests']
  assert accuracy.title == 'Accuracy on own test rows'
  assert 'Personal models: Local models, E = 1.' in accuracy.caption
  assert 'fraction' not in accuracy.caption
  [axes] = drawn['own_test_accuracy'].axes
  assert axes.get_xlabel() == ''
  assert loss.alternative_text == (
    'Dot chart, loss on own test rows. FedAvg, E = 1: 5.000; Local models, '
    'E = 1: 3.500.'
  )


def test_commands_of_own_tests(pair_of_models):
  commands = [
    ' '.join(c) for c in settings.reproduction_commands(pair_of_models)
  ]
  evaluations = [c for c in commands if c.startswith('fedfish evaluate')]
  assert len(evaluations) == 2
  assert all('--client_split own_test' in command for command in evaluations)
  assert not any('--max_clients' in command for command in evaluations)


def test_personal_curves(write_scored, drawn):
  run = write_scored('own', 'local_only', (3.0, 4.0, 5.0))
  rows = ('round,personal/loss,personal/accuracy', '0,3.0,0.1', '2,1.5,0.6')
  (run / 'metrics.csv').write_text('\n'.join(rows) + '\n')
  found = {f.name: f for f in curves.learning_curves(loading.load_runs([run]))}
  assert list(found) == ['curve_personal_loss', 'curve_personal_accuracy']
  assert found['curve_personal_loss'].title == 'Own test loss against round'
  assert 'its own test rows with its personal model' in (
    found['curve_personal_accuracy'].caption
  )
  [axes] = drawn['curve_personal_accuracy'].axes
  assert axes.lines[0].get_ydata() == pytest.approx([10.0, 60.0])


def _pairs(affinity, clusters=(1, 0, 1)):
  return [
    (a, cluster, b, value)
    for a, cluster, row in zip(_IDS, clusters, affinity, strict=True)
    for b, value in zip(_IDS, row, strict=True)
  ]


_AFFINITY = ((5.0, -1.0, 2.0), (-3.0, 4.0, 0.0), (1.0, -2.0, 6.0))


def test_affinities_by_cluster_by_hand(write_scored, drawn):
  run = write_scored(
    'own', 'local_only', (3.0, 4.0, 5.0), affinity=_pairs(_AFFINITY)
  )
  [figure] = affinities.affinity_maps(loading.load_runs([run]))
  # Cluster 0 is b; a and c are cluster 1: (2 + 1) / 2 within, across
  # (-1 - 3 + 0 - 2) / 4, and (5 + 4 + 6) / 3 on the diagonal.
  assert (
    'Mean affinity: within clusters +1.500 (2 pairs), across clusters −1.500 '
    '(4 pairs), for themselves +5.000.'
  ) in figure.caption
  assert 'Lines separate' in figure.caption
  mesh = drawn['affinity_1'].axes[0].collections[0]
  values = mesh.get_array()
  assert values.filled(np.nan)[0].tolist()[1:] == [-3.0, 0.0]  # b: a, c
  assert np.diag(values.mask).all() and values.mask.sum() == 3
  assert mesh.get_clim() == (-3.0, 3.0)
  texts = [t.get_text() for t in drawn['affinity_1'].axes[0].texts]
  assert texts == ['Cluster 0', 'Cluster 1']
  rows = list(csv.DictReader(io.StringIO(figure.csv)))
  assert [r['point'] for r in rows[:3]] == ['b.org', 'a.org', 'c.org']
  assert [float(r['y']) for r in rows[:3]] == [4.0, -3.0, 0.0]
  assert rows[0]['series'] == 'Local models, E = 1: b.org'


def test_affinities_without_clusters(write_scored, drawn):
  run = write_scored(
    'own',
    'local_only',
    (3.0, 4.0, 5.0),
    affinity=_pairs(_AFFINITY, (-1, -1, -1)),
  )
  [figure] = affinities.affinity_maps(loading.load_runs([run]))
  # (-1 + 2 - 3 + 0 + 1 - 2) / 6.
  assert 'between clients −0.500 (6 pairs)' in figure.caption
  assert 'cluster' not in figure.caption
  assert not drawn['affinity_1'].axes[0].texts


def test_affinities_that_are_missing_or_not_finite():
  table = pd.DataFrame(
    [(b'b', 0, b'c', 1.0), (b'b', 0, b'a', 2.0)],
    columns=['client_id', 'cluster', 'candidate_id', 'affinity'],
  )
  matrix, clusters = affinities.affinity_matrix(table)
  # Those without a row of their own come last.
  assert list(matrix.index) == list(matrix.columns) == [b'b', b'a', b'c']
  assert clusters.tolist() == [0, -1, -1]
  np.testing.assert_array_equal(matrix.loc[b'b'], [np.nan, 2.0, 1.0])
  assert np.isnan(matrix.loc[b'a']).all()


def test_affinities_of_all_zeros(write_scored, drawn):
  zeros = _pairs(((0.0,) * 3,) * 3)
  run = write_scored('own', 'local_only', (3.0, 4.0, 5.0), affinity=zeros)
  assert affinities.affinity_maps(loading.load_runs([run]))
  mesh = drawn['affinity_1'].axes[0].collections[0]
  assert mesh.get_clim() == (-1.0, 1.0)


def test_affinities_are_means_over_seeds(write_scored, drawn):
  twice = tuple(tuple(3 * x for x in row) for row in _AFFINITY)
  runs = [
    write_scored(f's{seed}', 'local_only', (3.0, 4.0, 5.0), 'personal', seed)
    for seed in (1, 2)
  ]
  for run, values in zip(runs, (_AFFINITY, twice), strict=True):
    _add_affinities(run / 'evaluations' / 'own', _pairs(values))
  pooled = repetitions.pool_repetitions(loading.load_runs(runs))
  assert pooled[0].evaluation(OWN_TEST).model == 'personal'
  [figure] = affinities.affinity_maps(pooled)
  # Twice the mean of one seed: (1 + 3) / 2.
  assert 'within clusters +3.000 (2 pairs)' in figure.caption
  assert 'Means over 2 seeds.' in figure.caption


def test_a_model_of_no_known_kind(write_scored):
  run = write_scored('own', 'local_only', (3.0, 4.0, 5.0), model='shared')
  with pytest.raises(UserError, match="'personal' or 'global'.*is shared"):
    loading.load_runs([run])


def test_many_clients_have_no_names_in_the_heat_map(drawn, write_scored):
  ids = [f'c{n:02d}' for n in range(50)]
  rows = [(a, n % 7, b, 1.0) for n, a in enumerate(ids) for b in ids]
  run = write_scored('own', 'local_only', (3.0, 4.0, 5.0), affinity=rows)
  affinities.affinity_maps(loading.load_runs([run]))
  axes = drawn['affinity_1'].axes[0]
  assert not len(axes.get_xticks())
  assert [t.get_text() for t in axes.texts] == [*'0123456']
  assert axes.collections[0].get_rasterized()
