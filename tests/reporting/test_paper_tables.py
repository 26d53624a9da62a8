"""The paper's tables with our numbers, and theirs beside them only by right."""

import csv
import io

import pytest

from tff_fedfish.reporting import (
  comparisons,
  loading,
  page,
  paper_tables,
)
from tff_fedfish.reporting.papers import fed_fish
from tff_fedfish.reporting.repetitions import pool_repetitions

# Held out are those whom the corpus holds out itself.
_TEST_SPLIT = {'client_splits.held_out_fraction': None}
_FIXED_CLASSES = {
  'partition.scheme': 'fixed_classes',
  'partition.num_clients': 10,
  'partition.classes_per_client': 2,
}
_EMNIST = {
  'data.corpus': 'emnist_by_writer',
  'data.directory': 'corpora/emnist',
  'client_splits.held_out_fraction': None,
  'data.sequence_length': None,
  'model.preset': 'emnist_cnn',
  'cohorts.cohort_size': 64,
  'client_work.local_batch_size': 10,
  'client_work.max_sequences_per_client': 100,
  'client_work.learning_rate': 1e-3,
}


def _tables(directories):
  runs = pool_repetitions(loading.load_runs(directories))
  return {
    table.number: table for table in paper_tables.build_paper_tables(runs)
  }


def _means(row, scale=1.0):
  return [cell.ours and scale * cell.ours.mean for cell in row.cells]


@pytest.fixture(scope='module')
def images(tmp_path_factory, write_sweep):
  """Directories of E = 4 and 8 at fixed rounds and compute; two seeds."""
  gains = {
    (algorithm, epochs, rounds): rounds / 4 + (algorithm == 'fed_fish')
    for algorithm in ('fed_avg', 'fed_fish')
    for epochs, rounds in ((4, 4), (8, 4), (8, 2))
  }
  return write_sweep(
    tmp_path_factory.mktemp('images'), gains, num_seeds=2, settings=_EMNIST
  )


def test_table_3_by_hand(images):
  table = _tables(images)[3]
  assert [(c.stage, c.fraction) for c in table.columns] == [
    ('fixed compute', 0.0),
    ('fixed rounds', 0.0),
    ('fixed compute', 0.5),
    ('fixed rounds', 0.5),
  ]
  assert [(row.method, row.num_local_epochs) for row in table.rows] == [
    ('FedAvg', 4),
    ('FedFish', 4),
    ('FedFish − FedAvg', 4),
    ('FedAvg', 8),
    ('FedFish', 8),
    ('FedFish − FedAvg', 8),
  ]
  # Losses 8 - R / 4 - 0.05 over two seeds; accuracy (10 - loss) %. With 4
  # rounds 6.95, with 2 rounds 7.45; one nat less personalized.
  assert _means(table.rows[0], 100) == pytest.approx([3.05, 3.05, 4.05, 4.05])
  assert _means(table.rows[3], 100) == pytest.approx([2.55, 3.05, 3.55, 4.05])
  assert table.rows[3].num_rounds == (2, 4)
  assert table.rows[3].num_seeds == (2,)
  # FedFish gains one nat in each seed: the difference has no spread.
  difference = table.rows[5]
  assert _means(difference, 100) == pytest.approx([1.0] * 4)
  assert difference.cells[0].ours.sd_over_seeds == pytest.approx(0.0)
  # Of one method the seeds 2.5 and 2.6 % have sqrt(0.1^2 / 2).
  assert 100 * table.rows[3].cells[0].ours.sd_over_seeds == pytest.approx(
    0.0707, abs=1e-4
  )


def test_the_same_corpus_has_the_papers_numbers(images):
  table = _tables(images)[3]
  assert table.task.is_same
  assert [c.paper for c in table.rows[4].cells] == [
    0.8319,
    0.8442,
    0.8437,
    0.856,
  ]
  # 83.19 - 82.05.
  assert table.rows[5].cells[0].paper == pytest.approx(0.0114)
  assert table.differences == (
    'rounds 4 instead of 1,500',
    'damping of the Fisher diagonal 1e-08 instead of 0.0',
    'server epsilon (the usual; not printed) 1e-07 instead of 1e-08',
    'held-out clients with fewer than 4 examples left out (printed of C4 only)',
    '2 held-out clients evaluated instead of 3.4K test clients',
  )


def test_mnist_is_not_emnist(tmp_path, write_sweep):
  directories = write_sweep(
    tmp_path,
    {('fed_avg', 4, 2): 1.0, ('fed_fish', 4, 2): 1.0},
    num_seeds=1,
    settings=_EMNIST
    | {'data.corpus': 'mnist_by_writer', 'cohorts.cohort_size': 32},
  )
  table = _tables(directories)[3]
  assert not table.task.is_same
  assert table.rows[0].cells[0].paper == 0.8138
  assert table.differences[:3] == (
    'corpus: ten digits of MNIST by writer, not 62 characters of EMNIST',
    'rounds 2 instead of 1,500',
    'clients per round 32 instead of 64',
  )
  runs = loading.load_runs(directories[:1])
  text = page.render_page(
    runs,
    runs,
    paper_tables.build_paper_tables(runs),
    comparisons.compare_methods([]),
    {},
  )
  assert '<b>In brackets: another corpus.</b> The paper’s EMNIST' in text
  assert '<span class="ci">(81.38)</span>' in text
  assert 'paper 81.38' not in text
  # Nothing here is a token.
  assert 'nats per token' not in text and 'nats per image' in text


@pytest.mark.parametrize(
  'settings, corpus, is_same',
  [
    ({'data.corpus': 'cifar100', **_TEST_SPLIT}, 'CIFAR100', True),
    ({'data.corpus': 'emnist_by_writer', **_TEST_SPLIT}, 'EMNIST', True),
    # A tenth of the training clients, as is the default.
    ({'data.corpus': 'cifar100'}, 'CIFAR100', False),
    ({'data.corpus': 'emnist_by_writer'}, 'EMNIST', False),
    ({'data.corpus': 'cifar100', **_FIXED_CLASSES}, 'CIFAR100', False),
    ({'data.corpus': 'cifar10', **_FIXED_CLASSES}, 'CIFAR100', False),
    ({'data.corpus': 'fashion_mnist', **_FIXED_CLASSES}, None, None),
    # A directory of text may hold anything.
    ({'data.directory': 'corpora/c4'}, 'C4', False),
    ({'data.directory': 'x/StackOverflow_train'}, 'Stack Overflow', False),
    ({}, 'C4', False),
  ],
)
def test_the_nearest_task(tmp_path, write_run, settings, corpus, is_same):
  [run] = loading.load_runs([write_run(tmp_path / 'run', settings=settings)])
  task = fed_fish.nearest_task(run)
  assert (task and task.corpus, task and task.is_same) == (corpus, is_same)
  # What is not the same says why.
  assert task is None or bool(task.words) != is_same


def test_a_share_of_the_training_clients_is_not_the_test_split(
  tmp_path, write_run
):
  [run] = loading.load_runs(
    [write_run(tmp_path / 'run', settings={'data.corpus': 'emnist_by_writer'})]
  )
  assert fed_fish.nearest_task(run).words == (
    '10 % of the training clients are held out, not the test split'
  )


@pytest.mark.parametrize(
  'settings, words',
  [
    ({}, None),
    ({'partition.root_alpha': 0.1, 'partition.leaf_alpha': 10.0}, None),
    (
      {'partition.num_clients': 50, 'partition.leaf_alpha': 1.0},
      'partition.num_clients 50 instead of 500; partition.leaf_alpha 1.0 '
      'instead of 10',
    ),
    (
      {'partition.examples_per_client': 20, 'partition.root_alpha': 1.0},
      'partition.examples_per_client 20 instead of 100; partition.root_alpha '
      '1.0 instead of 0.1',
    ),
    (
      {'partition.held_out': 'whole'},
      'partition.held_out whole instead of matching',
    ),
  ],
)
def test_the_papers_pachinko(tmp_path, write_run, settings, words):
  base = {
    'data.corpus': 'cifar100',
    'partition.scheme': 'pachinko',
    'partition.num_clients': 500,
    **_TEST_SPLIT,
  }
  [run] = loading.load_runs(
    [write_run(tmp_path / 'run', settings=base | settings)]
  )
  task = fed_fish.nearest_task(run)
  assert task.is_same == (words is None)
  # The twins differ from the paper in any case.
  twins = (
    'held-out clients are twins of the training clients, where the paper has '
    '100 clients of their own'
  )
  assert task.words == (f'{words}; {twins}' if words else twins)


@pytest.fixture(scope='module')
def text(tmp_path_factory, write_run, write_evaluation):
  """Directories of FedAvg and FedFish, E = 16, 4 rounds; one seed."""
  root = tmp_path_factory.mktemp('text')
  directories = []
  for algorithm, estimator, gain in (
    ('fed_avg', 'extra_pass', 0.0),
    ('fed_fish', 'extra_pass', 0.5),
    ('fed_fish', 'last_epoch', 1.0),
  ):
    run = write_run(
      root / f'{algorithm}_{estimator}',
      algorithm=algorithm,
      num_local_epochs=16,
      held_out_losses=(8.0,) * 5,
      settings={'algorithm.fisher_estimator': estimator},
    )
    for corpus, kind in (
      ('debian', 'held_out'),
      ('stack_overflow', 'transfer'),
      ('plays', 'transfer'),
    ):
      for name, round_num, loss in (('last', 4, 6.0), ('half', 2, 7.0)):
        write_evaluation(
          run,
          f'{corpus}-{name}',
          kind=kind,
          corpus=corpus,
          round_num=round_num,
          losses={
            0.0: (loss - gain,) * 4,
            0.25: (loss - gain - 0.5,) * 4,
            0.5: (loss - gain - 1.0,) * 4,
          },
          personalization={'epochs': 4, 'sequence_length': 128},
        )
    directories.append(run)
  return directories


def test_tables_4_and_5_by_hand(text):
  found = _tables(text)
  assert list(found) == [4, 5, 6]
  rows = {(r.evaluated_on, r.method): r for r in found[4].rows}
  assert list(dict.fromkeys(place for place, _ in rows)) == [
    'debian',
    'plays',
    'stack_overflow',
  ]
  fish = "FedFish (fisher_estimator 'extra_pass')"
  # Accuracy and loss at 0, 25 and 50 %: 6 - 0.5 and half a nat less each.
  assert _means(rows['plays', fish]) == pytest.approx(
    [0.045, 5.5, 0.05, 5.0, 0.055, 4.5]
  )
  assert _means(rows['plays', f'{fish} − FedAvg']) == pytest.approx(
    [0.005, -0.5] * 3
  )
  # After half of the rounds a nat more.
  rows = {(r.evaluated_on, r.method): r for r in found[5].rows}
  assert _means(rows['plays', fish])[1::2] == pytest.approx([6.5, 6.0, 5.5])


def test_which_numbers_of_the_paper_stand_beside_text(text):
  found = _tables(text)
  printed = {
    (number, row.evaluated_on, row.method): [c.paper for c in row.cells]
    for number, table in found.items()
    for row in table.rows
  }
  extra = "FedFish (fisher_estimator 'extra_pass')"
  last = "FedFish (fisher_estimator 'last_epoch')"
  # C4 -> C4 and C4 -> Stack Overflow at E = 16.
  assert printed[4, 'debian', 'FedAvg'][:2] == [0.3104, 4.13]
  assert printed[4, 'stack_overflow', extra][4:] == [0.2777, 4.22]
  assert printed[5, 'debian', extra][:2] == [0.3033, 4.28]
  # The paper has two other corpora, and neither is of plays.
  assert set(printed[4, 'plays', extra]) == {None}
  # Its Table 4 is of the extra pass, its Table 6 of the last epoch.
  assert set(printed[4, 'debian', last]) == {None}
  assert printed[6, 'debian', last] == [0.3028, 4.07, 0.4431, 3.42]
  assert set(printed[6, 'debian', extra]) == {None}
  # No text is the paper's.
  assert not any(table.task.is_same for table in found.values())


def test_differences_of_text_in_words(text):
  table = _tables(text)[4]
  assert table.differences == (
    'corpus: the text in “debian”, of which a run does not record what it is',
    'model tiny instead of a 1.5B decoder',
    'rounds 4 instead of 10,000',
    'sequence length 128 instead of 1,024',
    'server learning rate 0.001 instead of 0.01',
    'client learning rate 0.05 instead of 0.001',
    'damping of the Fisher diagonal 1e-08 instead of 0.0',
    'server epsilon (the usual; not printed) 1e-07 instead of 1e-08',
    "pieces of the vocabulary (BERT's in FedC4's code, lower case; not "
    'printed) 2,048 instead of 30,522',
    'share of the training clients held out 0.1 instead of 0.0',
    "the end of a document counted as a target, which FedC4's code weighs by 0 "
    '(not printed)',
    '4 held-out clients evaluated instead of 8.5K test clients',
  )


def test_differences_of_optimizers_in_words(tmp_path, write_sweep):
  directories = write_sweep(
    tmp_path,
    {('fed_avg', 1, 4): 1.0},
    num_seeds=1,
    settings=_EMNIST
    | {
      'client_work.optimizer': 'adamw',
      'client_work.warmup_rounds': 2,
      'client_work.max_gradient_norm': 1.0,
      'server.optimizer': 'sgd',
      'server.momentum': 0.9,
    },
  )
  table = next(iter(_tables(directories).values()))
  for words in (
    'client optimizer adamw instead of sgd',
    'client warmup rounds 2 instead of 0',
    'client max gradient norm 1.0 instead of none',
    'server momentum 0.9 instead of 0.0',
  ):
    assert words in table.differences


@pytest.mark.parametrize(
  ('setting', 'value', 'words'),
  [
    (
      'data.drop_short_block',
      False,
      'last shorter block dropped off instead of on',
    ),
    (
      'data.client_batches',
      'ragged',
      "batches of a client (as in FedC4's code; not printed) ragged instead of "
      'repeat_full',
    ),
    (
      'data.sampling',
      'blocks',
      "sampling of a client's text (as in FedC4's code; not printed) blocks "
      'instead of documents',
    ),
    (
      'server.beta_1',
      0.8,
      'server beta 1 (the usual; not printed) 0.8 instead',
    ),
    ('server.beta_2', 0.99, 'server beta 2 (the usual; not printed) 0.99 inst'),
    (
      'server.epsilon',
      1e-3,
      'server epsilon (the usual; not printed) 0.001 in',
    ),
    (
      'algorithm.relative_floor',
      0.5,
      'damping of the Fisher diagonal 0.5 instead of 0.0',
    ),
    (
      'algorithm.fisher_power',
      0.5,
      'power of the Fisher diagonal 0.5 instead of 1.0',
    ),
    (
      'algorithm.plain_mean_fraction',
      0.5,
      "part of FedAvg's mean 0.5 instead of 0.0",
    ),
    (
      'algorithm.plain_mean_tensors',
      'logits',
      "tensors that take FedAvg's mean logits instead of none",
    ),
    (
      'model.vocabulary_size',
      2048,
      "pieces of the vocabulary (BERT's in FedC4's code, lower case; not "
      'printed) 2,048 instead of 30,522',
    ),
    (
      'model.compute_dtype',
      'bfloat16',
      'type of the matrix products (the usual; not printed) bfloat16 instead '
      'of float32',
    ),
    (
      'client_splits.held_out_fraction',
      0.2,
      'share of the training clients held out 0.2 instead of 0.0',
    ),
  ],
)
def test_every_setting_that_differs_is_named(
  tmp_path, write_sweep, setting, value, words
):
  directories = write_sweep(
    tmp_path,
    {('fed_fish', 1, 4): 1.0},
    num_seeds=1,
    settings={setting: value},
  )
  table = next(iter(_tables(directories).values()))
  assert any(text.startswith(words) for text in table.differences)


@pytest.mark.parametrize(
  ('name', 'value', 'words'),
  [
    (
      'split_unit',
      'sequences',
      'halves of a client made of sequences instead of documents',
    ),
    (
      'learning_rate',
      0.05,
      'learning rate of personalization 0.05 instead of 0.001',
    ),
  ],
)
def test_personalization_that_differs_is_named(
  tmp_path, write_run, write_evaluation, name, value, words
):
  run = write_run(tmp_path / 'run')
  write_evaluation(run, 'e', personalization={name: value})
  table = next(iter(_tables([run]).values()))
  assert words in table.differences


@pytest.mark.parametrize(
  ('settings', 'corpus', 'ends_count', 'small_left_out'),
  [
    ({'data.directory': 'corpora/c4'}, 'C4', True, False),
    (
      {'data.directory': 'corpora/stack_overflow'},
      'Stack Overflow',
      True,
      True,
    ),
    (_EMNIST, 'EMNIST', False, True),
  ],
)
def test_what_differs_in_every_run(
  tmp_path, write_run, settings, corpus, ends_count, small_left_out
):
  [run] = loading.load_runs([write_run(tmp_path / 'run', settings=settings)])
  task = fed_fish.nearest_task(run)
  found = fed_fish.differences(task, [run], [], None)
  assert task.corpus == corpus
  words = (
    "the end of a document counted as a target, which FedC4's code weighs by 0 "
    '(not printed)'
  )
  assert (words in found) is ends_count
  words = (
    'held-out clients with fewer than 4 examples left out (printed of C4 only)'
  )
  assert (words in found) is small_left_out


def test_stack_overflow_is_evaluated_on_its_validation_clients(
  tmp_path, write_sweep
):
  directories = write_sweep(
    tmp_path,
    {('fed_fish', 1, 4): 1.0},
    num_seeds=1,
    settings={'data.directory': 'corpora/stack_overflow'},
  )
  table = next(iter(_tables(directories).values()))
  words = '2 held-out clients evaluated instead of 38,758 validation clients'
  assert words in table.differences


def test_other_local_epochs_have_no_row_of_the_paper(pair):
  # E = 8: the paper trains on C4 with 1 and 16.
  table = _tables(pair)[4]
  assert not table.has_paper
  assert _means(table.rows[0])[1] == 6.0


def test_the_other_budget_is_not_the_papers_r(tmp_path, write_sweep):
  directories = write_sweep(
    tmp_path,
    {('fed_avg', 1, 4): 1.0, ('fed_avg', 16, 4): 1.0, ('fed_avg', 1, 64): 1.0},
    num_seeds=1,
  )
  rows = _tables(directories)[4].rows
  # R = 4 with E = 16 as reference: 64 rounds of E = 1 compute as much.
  assert {
    (r.num_local_epochs, r.num_rounds): r.cells[0].paper for r in rows
  } == {
    (1, (4,)): 0.3016,
    (1, (64,)): None,
    (16, (4,)): 0.3104,
  }


def test_fixed_compute_of_another_reference_is_not_the_papers(
  tmp_path, write_sweep
):
  gains = {('fed_avg', 8, 2): 1.0, ('fed_avg', 16, 2): 1.0}
  gains |= {('fed_avg', 16, 1): 1.0}
  directories = write_sweep(tmp_path, gains, num_seeds=1, settings=_EMNIST)
  table = _tables(directories)[3]
  # 2 rounds of E = 8 are 16 local epochs, as 1 of E = 16; the paper's column is
  # of 4 x 1,500.
  compute = [i for i, c in enumerate(table.columns) if c.stage[6:] == 'compute']
  rounds = [i for i, c in enumerate(table.columns) if c.stage[6:] == 'rounds']
  assert {row.cells[i].paper for row in table.rows for i in compute} == {None}
  assert all(row.cells[i].paper for row in table.rows for i in rounds)
  assert all(row.cells[i].ours for row in table.rows for i in compute)


def test_runs_without_a_final_evaluation_are_named(
  tmp_path, write_run, write_evaluation
):
  done = write_run(tmp_path / 'done', algorithm='fed_avg')
  write_evaluation(done, 'e')
  begun = write_run(tmp_path / 'begun', num_rounds=2, held_out_losses=(8.0,))
  write_evaluation(begun, 'e', round_num=0)
  found = _tables([done, begun])
  assert found[4].left_out == ('FedFish, E = 1',)
  assert [row.method for row in found[4].rows] == ['FedAvg']
  assert _tables([begun]) == {}


def test_csv_has_all_numbers(images):
  tables = list(_tables(images).values())
  rows = list(
    csv.DictReader(io.StringIO(paper_tables.paper_tables_csv(tables)))
  )
  third = [row for row in rows if row['table'] == '3']
  assert len(third) == 6 * 4
  row = third[12]
  assert (row['method'], row['num_rounds'], row['fraction']) == (
    'FedAvg',
    '2/4',
    '0.0',
  )
  assert float(row['mean']) == pytest.approx(0.0255)
  assert (row['num_seeds'], row['paper']) == ('2', '0.8205')
  assert (row['paper_corpus'], row['same_corpus']) == ('EMNIST', 'yes')
  # Seeds 2.5 and 2.6 %, each alone in a quarter of the resamples.
  assert float(row['ci_low']) == pytest.approx(0.025)
  # No difference has an interval here: paired ones are on the page.
  assert third[8]['method'] == 'FedFish − FedAvg' and not third[8]['ci_low']
  # A table of the paper that has no such row.
  assert {row['paper'] for row in rows if row['table'] == '4'} == {''}
