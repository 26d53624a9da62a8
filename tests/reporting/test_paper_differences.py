"""Differences of methods in the paper's tables, paired or not there at all."""

import csv
import io

import pytest

from tff_fedfish.reporting import (
  loading,
  local_epochs,
  paper_tables,
)
from tff_fedfish.reporting.repetitions import pool_repetitions


@pytest.fixture
def rows_of(tmp_path, write_run, write_evaluation):
  """Returns the rows of Table 4 by method, of runs that are described."""

  def build(*described):
    directories = []
    for number, (algorithm, seed, loss, keywords) in enumerate(described):
      run = write_run(
        tmp_path / str(number),
        algorithm=algorithm,
        settings={'seeds.model_seed': seed},
      )
      keywords = {'client_ids': ('a', 'b'), **keywords}
      losses = {0.0: (loss,) * len(keywords['client_ids'])}
      write_evaluation(run, 'e', losses=losses, **keywords)
      directories.append(run)
    runs = pool_repetitions(loading.load_runs(directories))
    [table] = paper_tables.build_paper_tables(runs)
    return {row.method: row for row in table.rows}

  return build


def test_single_runs_of_equal_seeds_are_paired(rows_of):
  rows = rows_of(('fed_avg', 1, 6.0, {}), ('fed_fish', 1, 5.5, {}))
  row = rows['FedFish − FedAvg']
  # 5.5 - 6; accuracies (10 - loss) / 100: 0.045 - 0.04.
  assert [c.ours.mean for c in row.cells] == pytest.approx([0.005, -0.5])
  assert row.num_seeds == (1,)
  assert row.cells[1].ours.sd_over_seeds is None


def test_single_runs_of_other_seeds_have_no_difference(rows_of):
  rows = rows_of(('fed_avg', 1, 6.0, {}), ('fed_fish', 2, 5.5, {}))
  assert list(rows) == ['FedAvg', 'FedFish']


def test_the_seed_that_both_have(rows_of):
  rows = rows_of(
    ('fed_avg', 1, 6.0, {}), ('fed_fish', 1, 5.5, {}), ('fed_fish', 2, 4.0, {})
  )
  assert rows['FedFish'].num_seeds == (2,)
  row = rows['FedFish − FedAvg']
  # Seed 1 alone: 5.5 - 6, not the mean (5.5 + 4) / 2 - 6 = -1.25.
  assert row.cells[1].ours.mean == pytest.approx(-0.5)
  assert row.num_seeds == (1,)


@pytest.mark.parametrize(
  'other',
  [{'client_ids': ('a', 'c')}, {'personalization': {'epochs': 9}}],
  ids=['clients', 'fine-tuning'],
)
def test_other_clients_or_fine_tuning_have_no_difference(rows_of, other):
  rows = rows_of(('fed_avg', 1, 6.0, {}), ('fed_fish', 1, 5.5, other))
  assert list(rows) == ['FedAvg', 'FedFish']


def test_of_equal_runs_the_first_has_the_row(
  tmp_path, write_run, write_evaluation
):
  directories = []
  for name, loss in (('a', 6.0), ('b', 5.0)):
    run = write_run(tmp_path / name)
    write_evaluation(run, 'e', losses={0.0: (loss,) * 4})
    directories.append(run)
  runs = pool_repetitions(loading.load_runs(directories))
  [table] = paper_tables.build_paper_tables(runs)
  [row] = table.rows
  assert row.cells[1].ours.mean == 6.0
  # It has an evaluation: not left out for want of one.
  assert table.left_out == ()
  assert table.further == ('FedFish, E = 1 (b)',)


def test_settings_are_told_apart(tmp_path, write_sweep, drawn):
  directories = []
  for alpha in (0.1, 10.0):
    directories += write_sweep(
      tmp_path / str(alpha),
      {('fed_fish', 1, 2): 1.0, ('fed_fish', 4, 2): 2.0},
      num_seeds=1,
      settings={
        'data.corpus': 'cifar100',
        'partition.scheme': 'per_client_sampling',
        'partition.num_clients': 10,
        'partition.alpha': alpha,
      },
    )
  runs = pool_repetitions(loading.load_runs(directories))
  tables = paper_tables.build_paper_tables(runs)
  settings = ['partition.alpha = 0.1', 'partition.alpha = 10.0']
  assert [t.setting for t in tables if t.number == 4] == settings
  rows = csv.DictReader(io.StringIO(paper_tables.paper_tables_csv(tables)))
  assert sorted({row['setting'] for row in rows}) == settings
  figures = local_epochs.local_epoch_figures(runs)
  assert len(drawn) == len(figures)
  found = [f for f in figures if f.name.startswith('local_epochs_accuracy')]
  assert [figure.title for figure in found] == [
    f'Final accuracy by local epochs, {setting}' for setting in settings
  ]
  assert [
    figure.caption.endswith(f'{s}.')
    for figure, s in zip(found, settings, strict=True)
  ] == [True, True]


def test_two_corpora_of_one_name(tmp_path, write_run, write_evaluation):
  run = write_run(tmp_path / 'run')
  write_evaluation(run, 'own', losses={0.0: (6.0,) * 4})
  write_evaluation(
    run, 'other', kind='transfer', corpus='debian', losses={0.0: (7.0,) * 4}
  )
  tables = paper_tables.build_paper_tables(loading.load_runs([run]))
  assert [
    (row.evaluated_on, row.kind, row.cells[1].ours.mean)
    for row in tables[0].rows
  ] == [('debian', 'held_out', 6.0), ('debian (transfer)', 'transfer', 7.0)]
  rows = csv.DictReader(io.StringIO(paper_tables.paper_tables_csv(tables)))
  assert {(row['evaluated_on'], row['evaluated_kind']) for row in rows} == {
    ('debian', 'held_out'),
    ('debian (transfer)', 'transfer'),
  }


def test_no_text_is_a_formula(tmp_path, write_run, write_evaluation):
  run = write_run(tmp_path / 'run', settings={'data.directory': 'corpora/=1+2'})
  write_evaluation(run, 'e', losses={0.0: (6.0,) * 4})
  tables = paper_tables.build_paper_tables(loading.load_runs([run]))
  rows = csv.DictReader(io.StringIO(paper_tables.paper_tables_csv(tables)))
  assert {row['trained_on'] for row in rows} == {"'=1+2"}
