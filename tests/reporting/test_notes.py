"""Caveats of the page, word for word."""

import shutil

from report_runs import write_evaluation, write_run, write_sweep

from tff_fedfish.reporting import headline, loading, notes, scores


def _read(directories):
  return scores.read_scores(loading.load_runs(directories))


def _notes(directories):
  return notes.notes(_read(directories))


def test_notes_of_a_troubled_run(tmp_path):
  run = write_run(tmp_path / 'run', num_rounds=9)
  text = (run / 'metrics.csv').read_text()
  # Column 3 counts non-finite clients: 2 in round 1, 1 in round 2.
  text = text.replace('\n1,8.0,0,', '\n1,8.0,2,')
  (run / 'metrics.csv').write_text(text.replace('\n2,7.0,0,', '\n2,7.0,1,'))
  skipped = {'skipped_clients': {'too_few_documents': 7, 'none': 0}}
  write_evaluation(run, 'early', round_num=0)
  write_evaluation(run, 'first', round_num=1)
  write_evaluation(run, 'later', round_num=1, facts=skipped)
  write_evaluation(run, 'searched', kind='own_validation')
  unknown = {'unknown_token_fraction': 0.9871}
  write_evaluation(run, 'russian', kind='transfer', corpus='r', facts=unknown)
  losses = {0.0: (5.0,) * 4, 0.5: (4.0, 9.0, 9.0, 9.0)}
  write_evaluation(run, 'hurt', kind='transfer', corpus='h', losses=losses)
  # Also of an earlier round, which no curve has.
  write_evaluation(run, 'a', kind='transfer', corpus='h', round_num=1)
  # It has the barrier.
  write_evaluation(
    run, 'b', kind='transfer', corpus='h', barriers=((4.0, 4.5, 0.2, 0.1),)
  )
  label = 'FedFish, E = 1: '
  assert _notes([run]) == [
    label + '2 of 9 rounds so far.',
    label + '3 clients with non-finite results counted with weight 0 in '
    'training.',
    label + 'evaluation a on clients of h is not shown: hurt is.',
    label + 'evaluation first on held-out clients is not shown: later is.',
    label + 'evaluation later is of round 1, not of the last round.',
    label + 'evaluation later left out clients: 7 (too few documents).',
    label + 'evaluation russian has 98.71 % unknown tokens: the vocabulary '
    'cannot express this text, so scores on it say little.',
    label + 'evaluation searched is of clients or rows of the training and is '
    'not shown.',
    label + 'personalization on 50 % hurt 75 % of the clients of h in '
    'evaluation hurt.',
  ]


def test_an_evaluation_without_clients(tmp_path):
  run = write_run(tmp_path / 'run')
  facts = {'fractions': [], 'num_clients': 0}
  path = write_evaluation(run, 'e', facts=facts) / 'per_client.csv'
  path.write_text(path.read_text().splitlines()[0] + '\n')
  table = _read([run])
  assert notes.notes(table) == []
  assert headline.headline(table) == (
    '1 run without a score on held-out clients.'
  )


def test_clients_without_a_finite_loss(tmp_path):
  run = write_run(tmp_path / 'run')
  path = write_evaluation(run, 'e', losses={0.0: (6.0,) * 4}) / 'summary.json'
  summary = path.read_text().replace(
    '"num_non_finite": 0', '"num_non_finite": 3'
  )
  path.write_text(summary)
  assert _notes([run]) == [
    'FedFish, E = 1: evaluation e left out 3 clients with a non-finite loss.'
  ]


def test_copies_and_many_runs_that_are_not_compared(tmp_path):
  gains = {('fed_avg', 1, 2): 1, ('fed_fish', 1, 2): 2}
  runs = write_sweep(tmp_path, gains, num_seeds=1)
  runs.append(shutil.copytree(runs[1], tmp_path / 'copy'))
  assert _notes(runs)[0] == (
    'FedFish, E = 1 (copy) is not compared: it is a copy of FedFish, E = 1 '
    '(fed_fish-E1-R2-seed0).'
  )
  for width in (16, 32, 48, 64):
    settings = {'model.width': width}
    runs.append(write_run(tmp_path / str(width), settings=settings))
  assert (
    '5 of 7 runs are not compared: each is a copy, or differs from all others '
    'in settings or evaluations.'
  ) in _notes(runs)


def test_what_holds_for_several_runs_is_said_once(tmp_path):
  runs = [
    write_run(tmp_path / 'a', num_rounds=9),
    write_run(tmp_path / 'b', num_rounds=9, num_local_epochs=8),
  ]
  assert _notes(runs)[0] == 'All runs: 2 of 9 rounds so far.'
  runs.append(write_run(tmp_path / 'c', algorithm='fed_avg'))
  assert _notes(runs)[0] == (
    'FedFish, E = 1 and FedFish, E = 8: 2 of 9 rounds so far.'
  )


def test_what_a_mean_over_seeds_lacks(tmp_path):
  runs = []
  for seed, clients in ((1, ('a', 'b')), (2, ('b', 'c')), (3, ())):
    run = write_run(tmp_path / str(seed), settings={'seeds.model_seed': seed})
    if clients:
      write_evaluation(run, 'e', client_ids=clients, losses={0.0: (5.0,) * 2})
    runs.append(run)
  # Of a, b and c both seeds have b.
  assert _notes(runs) == [
    'FedFish, E = 1: evaluation e is of 2 of 3 seeds.',
    'FedFish, E = 1: evaluation e left out 2 clients that not every seed has.',
    'Without an evaluation on held-out clients: FedFish, E = 1 (3).',
    'Runs that differ only in their seeds are averaged. With few seeds their '
    'intervals are too narrow.',
  ]


def test_the_evaluation_of_all_seeds_is_shown(tmp_path):
  runs = []
  for seed in (1, 2):
    settings = {'seeds.model_seed': seed}
    runs.append(write_run(tmp_path / str(seed), settings=settings))
    write_evaluation(runs[-1], 'e', personalization={'epochs': 4})
  write_evaluation(
    runs[0],
    'z',
    personalization={'epochs': 9},
    barriers=((4.0, 4.5, 0.2, 0.1),),
  )
  write_evaluation(runs[1], 'z', personalization={'epochs': 40})
  runs.append(write_run(tmp_path / '3', settings={'seeds.model_seed': 3}))
  write_evaluation(runs[2], 'e', personalization={'epochs': 41})
  assert _notes(runs)[:-1] == [
    'FedFish, E = 1 (2): evaluation z on held-out clients is not shown: e is.',
    'FedFish, E = 1 (3): evaluation e on held-out clients is not shown: that '
    'of other seeds is.',
    'FedFish, E = 1: evaluation e is of 2 of 3 seeds.',
    'FedFish, E = 1: the barrier is of 1 of 3 seeds.',
  ]


def test_runs_that_were_not_measured_alike(tmp_path):
  runs = [
    write_run(tmp_path / 'a'),
    write_run(
      tmp_path / 'b',
      held_out_losses=(8.0, 7.0),
      settings={'data.directory': 'corpora/other'},
    ),
  ]
  write_evaluation(runs[0], 'e', personalization={'learning_rate': 0.1})
  write_evaluation(
    runs[1],
    'e',
    round_num=1,
    client_ids=('a',),
    losses={0.0: (5.0,)},
    personalization={'learning_rate': 1.0},
  )
  assert _notes(runs) == [
    'The runs were not measured on the same data: they differ in '
    "data.directory ('corpora/debian' / 'corpora/other').",
    'The runs have different numbers of rounds (1, 2).',
    'The evaluations on held-out clients differ in clients (4 / 1), '
    'learning_rate (0.1 / 1.0); only equal ones are compared.',
    'Intervals are over the clients of one run each; other seeds may rank the '
    'runs differently.',
  ]
