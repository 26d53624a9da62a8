"""The summary sentence and the caveats, word for word."""

import json

from tff_fedfish.reporting import (
  comparisons,
  findings,
  headline,
  loading,
  repetitions,
  tables,
  words,
)


def _edit_config(directory, section, /, **values):
  path = directory / 'config.json'
  config = json.loads(path.read_text())
  config[section].update(values)
  path.write_text(json.dumps(config))


def _headline(directories):
  """Returns the first sentence of the page."""
  runs = loading.load_runs(directories)
  return headline.headline(
    repetitions.pool_repetitions(runs), comparisons.compare_methods(runs)
  )


def test_the_headline_is_a_comparison_at_equal_settings(
  tmp_path, write_run, write_evaluation
):
  average = write_run(tmp_path / 'avg', algorithm='fed_avg')
  fish = write_run(tmp_path / 'fish')
  # A larger model and more rounds: lower, but of no comparison.
  mine = write_run(
    tmp_path / 'mine',
    num_rounds=15,
    settings={'model.width': 64, 'client_work.optimizer': 'adamw'},
  )
  write_evaluation(average, 'e', losses={0.0: (5.0, 5.5, 5.0, 5.0)})
  write_evaluation(fish, 'e', losses={0.0: (5.5, 6.5, 5.5, 5.5)})
  write_evaluation(mine, 'e', losses={0.0: (1.0,) * 4})
  sentence = _headline([average, fish, mine])
  # 0.5, 1, 0.5 and 0.5.
  assert sentence.startswith(
    'At equal settings FedAvg is lower than FedFish by 0.625 (0.500 to 0.875) '
    'nats per token on held-out clients; run `mine` differs in '
  )
  assert sentence.endswith(
    'model.width, rounds and client_work.optimizer and is not compared.'
  )


def test_the_headline_of_an_undecided_pair(pair):
  assert _headline(pair) == (
    'At equal settings FedFish minus FedAvg is undecided, −0.250 (−0.500 to '
    '+0.000) nats per token on held-out clients.'
  )


def test_the_headline_names_settings(tmp_path, write_sweep):
  runs = write_sweep(
    tmp_path,
    {
      ('fed_avg', 1, 2): 1.0,
      ('fed_fish', 1, 2): 2.0,
      ('fed_avg', 4, 2): 1.0,
      ('fed_fish', 4, 2): 0.5,
    },
  )
  assert _headline(runs) == (
    'At equal settings FedFish is lower than FedAvg by 1.000 (1.000 to 1.000) '
    'nats per token on held-out clients with E = 1; FedAvg is lower than '
    'FedFish by 0.500 (0.500 to 0.500) with E = 4.'
  )


def test_many_comparisons_are_counted(tmp_path, write_sweep):
  gains = {}
  for epochs in range(1, 7):
    gains['fed_avg', epochs, 2] = 1.0
    gains['fed_fish', epochs, 2] = 2.0 if epochs < 5 else 0.5
  assert _headline(write_sweep(tmp_path, gains, num_seeds=1)) == (
    'At equal settings, of 6 comparisons on held-out clients: FedFish is lower '
    'in 4 and FedAvg is lower in 2.'
  )


def test_the_headline_without_evaluations(tmp_path, write_run):
  runs = [
    write_run(tmp_path / 'avg', algorithm='fed_avg'),
    write_run(tmp_path / 'fish', held_out_losses=(8.0, 7.0, 6.25)),
  ]
  assert _headline(runs) == (
    'At equal settings FedFish, E = 1 is lower than FedAvg, E = 1 by 0.250 '
    'nats per token on the held-out clients sampled during training.'
  )


def test_the_headline_compares_no_scores_of_other_seeds(tmp_path, write_run):
  runs = [
    write_run(
      tmp_path / 'avg',
      algorithm='fed_avg',
      settings={'seeds.model_seed': 9},
    ),
    write_run(tmp_path / 'fish', held_out_losses=(8.0, 7.0, 6.25)),
  ]
  assert _headline(runs).startswith('None of 2 runs is compared')


def test_the_headline_without_a_pair(tmp_path, write_run, write_evaluation):
  runs = [
    write_run(tmp_path / 'avg', algorithm='fed_avg', num_local_epochs=4),
    write_run(tmp_path / 'fish'),
  ]
  for run in runs:
    write_evaluation(run, 'e')
  assert _headline(runs) == (
    'None of 2 runs is compared: no two differ in the method only and were '
    'evaluated alike.'
  )


def test_personalization_that_hurts_is_noted(
  pair, tmp_path, write_run, write_evaluation
):
  run = write_run(tmp_path / 'run')
  write_evaluation(
    run, 'e', losses={0.0: (5.0,) * 4, 0.5: (4.0, 9.0, 9.0, float('nan'))}
  )
  assert (
    'FedFish, E = 1: personalization on 50 % hurt 75 % of the held-out clients.'
  ) in findings.notes(loading.load_runs([run]))
  assert not any(
    'hurt' in note for note in findings.notes(loading.load_runs(pair))
  )


def test_summary_of_one_run_without_evaluation(tmp_path, write_run):
  assert _headline([write_run(tmp_path / 'run')]) == (
    'Mean loss (nats per token) of FedFish, E = 1 on the held-out clients '
    'sampled during training (6.500).'
  )


def test_summary_without_any_score(tmp_path, write_run):
  directory = write_run(tmp_path / 'run', held_out_losses=(None,))
  assert _headline([directory]) == ('1 run without a held-out score so far.')


def test_never_claims_significance(pair):
  words = _headline(pair) + ' '.join(findings.notes(loading.load_runs(pair)))
  assert 'significan' not in words
  assert 'other seeds may order the runs otherwise' in words


def test_notes_of_comparable_finished_runs(pair):
  # Only the standing caveat.
  [note] = findings.notes(loading.load_runs(pair))
  assert note.startswith('Intervals of the results are over the clients')


def test_notes_of_a_single_clean_run(tmp_path, write_run):
  runs = loading.load_runs([write_run(tmp_path / 'run')])
  assert findings.notes(runs) == []


def test_notes_of_a_troubled_run(tmp_path, write_run, write_evaluation):
  directory = write_run(
    tmp_path / 'run', held_out_losses=(8.0, float('nan'), 7.0), num_rounds=9
  )
  text = (directory / 'metrics.csv').read_text()
  # Column 3 counts non-finite clients: 2 in round 1, 1 in round 2.
  text = text.replace('\n1,8.0,0,', '\n1,8.0,2,')
  text = text.replace('\n2,7.0,0,', '\n2,7.0,1,')
  (directory / 'metrics.csv').write_text(text)
  write_evaluation(directory, 'early', round_num=0)
  write_evaluation(directory, 'later', round_num=1)
  write_evaluation(directory, 'seen', kind='participating')
  write_evaluation(directory, 'searched', kind='own_validation')
  path = directory / 'evaluations' / 'later' / 'summary.json'
  summary = json.loads(path.read_text())
  summary['skipped_clients'] = {'fewer_than_4_sequences': 7, 'none': 0}
  path.write_text(json.dumps(summary))
  label = 'FedFish, E = 1: '
  assert findings.notes(loading.load_runs([directory])) == [
    label + '2 of 9 rounds so far.',
    label + '3 clients with non-finite results counted with weight 0 in '
    'training.',
    label + 'held_out/loss is not finite in 1 round: a gap in plots.',
    label + 'evaluation later is of round 1, not of the last round.',
    label + 'evaluation later left out clients: 7 (fewer than 4 sequences).',
    label + 'evaluation searched is of validation rows; its scores are not '
    'shown.',
    label + 'evaluation seen is of clients that may have taken part in '
    'training; its scores are not shown.',
  ]


def test_a_text_that_the_vocabulary_cannot_express(
  tmp_path, write_run, write_evaluation
):
  directory = write_run(tmp_path / 'run')
  for name, kind, fraction in (
    ('own', 'held_out', 0.05),
    ('russian', 'transfer', 0.9871),
  ):
    write_evaluation(
      directory,
      name,
      kind=kind,
      facts={'unknown_token_fraction': fraction},
    )
  assert findings.notes(loading.load_runs([directory])) == [
    'FedFish, E = 1: evaluation russian has 98.71 % unknown tokens: the '
    'vocabulary cannot express this text, so scores on it say little.'
  ]


def test_evaluations_that_are_not_shown_are_named(
  tmp_path, write_run, write_evaluation
):
  directory = write_run(tmp_path / 'run', held_out_losses=(8.0,) * 5)
  write_evaluation(directory, 'first', round_num=4)
  write_evaluation(directory, 'second', round_num=4)
  # Before the last round: a point of the curve of personalized accuracy.
  write_evaluation(directory, 'early', round_num=1)
  for name, round_num in (('plays-1', 1), ('plays-half', 2), ('plays', 4)):
    write_evaluation(
      directory, name, kind='transfer', corpus='plays', round_num=round_num
    )
  label = 'FedFish, E = 1: evaluation '
  assert findings.notes(loading.load_runs([directory])) == [
    label + 'first is not shown, as there is a later one of its kind.',
    label + 'plays-1 is not shown, as there is a later one of its kind.',
    label + 'plays-half is not shown, as there is a later one of its kind.',
  ]


def test_repetitions_are_counted(tmp_path, write_sweep):
  runs = loading.load_runs(
    write_sweep(
      tmp_path, {('fed_avg', 1, 2): 1.0, ('fed_fish', 1, 2): 2.0}, num_seeds=2
    )
  )
  pooled = repetitions.pool_repetitions(runs)
  assert findings.notes(runs, pooled) == [
    'Scores of runs that differ in seeds only are means over these; with a '
    'few seeds the intervals are too narrow.'
  ]


def test_what_a_mean_over_seeds_does_not_hold(
  tmp_path, write_run, write_evaluation
):
  directories = []
  for seed, clients in ((1, ('a', 'b')), (2, ('b', 'c')), (3, ())):
    run = write_run(tmp_path / str(seed), settings={'seeds.model_seed': seed})
    if clients:
      write_evaluation(run, 'e', client_ids=clients, losses={0.0: (5.0,) * 2})
    directories.append(run)
  runs = loading.load_runs(directories)
  pooled = repetitions.pool_repetitions(runs)
  # Of a, b and c both seeds have b.
  assert findings.notes(runs, pooled)[:2] == [
    'FedFish, E = 1: evaluation e is of 2 of 3 seeds.',
    'FedFish, E = 1: evaluation e left out 2 clients that not every seed has a '
    'finite score of.',
  ]
  assert _headline(directories).startswith(
    'Mean loss (nats per token) of FedFish, E = 1, over 3 seeds, on held-out '
    'clients of debian_descriptions without personalization (5.000, 95 % '
    'interval 5.000 to 5.000; 2 of 3 seeds)'
  )


def test_other_partitions_are_other_data(tmp_path, write_run):
  runs = [
    write_run(
      tmp_path / str(seed),
      settings={
        'data.corpus': 'cifar10',
        'partition.scheme': 'per_client_sampling',
        'partition.num_clients': 10,
        'partition.alpha': alpha,
        'seeds.partition_seed': seed,
      },
    )
    for seed, alpha in ((1, 0.1), (2, 10.0))
  ]
  assert findings.notes(loading.load_runs(runs))[0] == (
    'The runs were not measured on the same data: they differ in '
    'partition.alpha (0.1 / 10.0), seeds.partition_seed (1 / 2).'
  )


def test_only_runs_of_one_corpus_are_ranked(tmp_path, write_run):
  def run(name, algorithm, loss, corpus):
    return write_run(
      tmp_path / name,
      algorithm=algorithm,
      held_out_losses=(8.0, loss),
      settings={
        'data.corpus': corpus,
        'partition.scheme': 'fixed_classes',
        'partition.num_clients': 10,
        'partition.classes_per_client': 2,
      },
    )

  runs = [
    run('a', 'fed_avg', 1.0, 'cifar10'),
    run('b', 'fed_avg', 2.0, 'cifar100'),
    run('c', 'fed_fish', 1.5, 'cifar100'),
  ]
  assert _headline(runs) == (
    'At equal settings FedFish, E = 1 is lower than FedAvg, E = 1 (b) by 0.500 '
    'nats per image on the held-out clients sampled during training; run `a` '
    'differs in data.corpus and is not compared.'
  )
  table = tables.build_main_table(loading.load_runs(runs))
  columns = {column.key: column for column in table}
  # 1.0 is lower, but of other images.
  is_best = [cell.is_best for cell in columns['held_out/loss'].cells]
  assert is_best == [False, False, True]


def test_notes_on_runs_that_cannot_be_compared(
  tmp_path, write_run, write_evaluation
):
  runs = [
    write_run(tmp_path / 'a'),
    write_run(tmp_path / 'b', held_out_losses=(8.0, 7.0), num_local_epochs=2),
  ]
  _edit_config(runs[1], 'data', directory='corpora/other')
  write_evaluation(runs[0], 'e')
  write_evaluation(
    runs[1],
    'e',
    corpus='other',
    round_num=1,
    client_ids=('a',),
    losses={0.0: (5.0,)},
  )
  notes = findings.notes(loading.load_runs(runs))
  assert notes[:-1] == [
    'The runs were not measured on the same data: they differ in '
    "data.directory ('corpora/debian' / 'corpora/other').",
    'The runs have different numbers of rounds (1, 2).',
    'The evaluations on held-out clients have different numbers of clients '
    '(1, 4).',
    'The evaluations on held-out clients are on different corpora '
    '(debian_descriptions, other).',
  ]


def test_a_run_that_was_not_evaluated_is_named(pair, tmp_path, write_run):
  directories = [*pair, write_run(tmp_path / 'plain')]
  assert _headline(directories).endswith(
    '; run `plain` differs in E and is not compared.'
  )
  runs = loading.load_runs(directories)
  assert findings.notes(runs)[:2] == [
    'Without an evaluation on held-out clients: FedFish, E = 1.',
    'Without an evaluation on clients of sotu_by_president: FedFish, E = 1.',
  ]


def test_what_holds_for_several_runs_is_said_once(tmp_path, write_run):
  runs = [
    write_run(tmp_path / 'a', num_rounds=9),
    write_run(tmp_path / 'b', num_rounds=9, num_local_epochs=8),
  ]
  assert findings.notes(loading.load_runs(runs))[0] == (
    'All runs: 2 of 9 rounds so far.'
  )
  runs.append(write_run(tmp_path / 'c', algorithm='fed_avg'))
  assert findings.notes(loading.load_runs(runs))[0] == (
    'FedFish, E = 1 and FedFish, E = 8: 2 of 9 rounds so far.'
  )


def test_listed():
  assert words.listed(['a']) == 'a'
  assert words.listed(['a', 'b']) == 'a and b'
  assert words.listed(['a', 'b', 'c']) == 'a, b and c'
