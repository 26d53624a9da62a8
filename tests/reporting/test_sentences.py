"""The first sentences of the page, word for word; see test_rules.py, too."""

from report_runs import read_report, write_evaluation, write_methods, write_run

from tff_fedfish.reporting import headline

_BOTH = {'fed_avg': [6.0], 'fed_fish': [5.0]}


def _sentences(directories):
  return headline.sentences(read_report(directories))


def test_a_pair(pair):
  # Over four clients the bootstrap's 0.25 -/+ 0.25 and 0.25 -/+ 0.5, scaled by
  # 3.1824 / 1.96 sqrt(4 / 3) = 1.8749.
  assert _sentences(pair) == [
    'One seed, not a finding: the loss of FedFish was lower than that of '
    'FedAvg by 0.250 nats per token on held-out clients (95 % interval over '
    'clients −0.219 to 0.719), its accuracy higher by 0.25 points (95 % '
    'interval over clients −0.22 to 0.72); 4 clients, 1 seed; uplink 4 against '
    '2 models.',
    'After personalization on 50 % of each client’s data the loss of FedFish '
    'was lower than that of FedAvg by 0.250 nats per token on 4 clients (95 % '
    'interval over clients −0.687 to 1.187), its accuracy higher by 0.25 '
    'points (95 % interval over clients −0.69 to 1.19). It hurts 0 % of the '
    'clients with FedFish and 25 % of the clients with FedAvg.',
    # FedFish is at 3 after round 1, at 6 after round 2: 6.5 - 0.5 / 3 and 6.5.
    'At equal bytes, 4 models up and down (loss and accuracy point apart), the '
    'loss of FedFish was lower than that of FedAvg by 0.167 nats per token on '
    'the held-out clients that training scores, its accuracy lower by 0.67 '
    'points.',
  ]


def test_fewer_seeds_than_those_of_the_first_sentence(tmp_path):
  # One client, of which there is no interval over clients either.
  losses = {
    'fed_avg': [{0.0: (6.0,), 0.5: (4.0,)}, (6.1,), (6.2,)],
    'fed_fish': [{0.0: (5.0,), 0.5: (3.0,)}, (5.1,), (5.2,)],
  }
  options = {'fed_fish': {'units_per_round': 2}}
  runs = write_methods(tmp_path, losses, **options)
  # This run was not scored while training.
  blank = {'held_out_losses': (None,) * 3, 'units_per_round': 2}
  write_run(
    runs[-1], algorithm='fed_fish', settings={'seeds.model_seed': 2}, **blank
  )
  first, personalized, equal_bytes = _sentences(runs)
  assert '; 1 client, 3 seeds; ' in first
  assert ' (1 seed, not a finding) the loss ' in personalized
  assert ' that training scores for 2 seeds (by seed ' in equal_bytes


def test_comparisons_with_the_baseline_lead(tmp_path):
  losses = {'fed_avg': [6.5], 'fed_fish': [6.8], 'fed_prox': [7.0]}
  options = {'fed_fish': {'units_per_round': 2}}
  runs = write_methods(tmp_path, losses, **options)
  # Lower, but without the baseline.
  losses, wide = {'fed_prox': [4.0], 'fed_fish': [3.0]}, {'model.width': 512}
  runs += write_methods(tmp_path / 'wide', losses, all={'settings': wide})
  first, *_, counts = _sentences(runs)
  # The best against the next best.
  assert 'the loss of FedAvg was lower than that of FedFish by 0.300' in first
  # Traffic is in the order of the sentence: FedFish sends twice as much.
  assert first.endswith('; uplink 2 against 4 models.')
  assert counts == (
    'Of 2 comparisons with FedAvg at the same settings: no finding in 2.'
  )


def test_personalization_of_another_round_is_another_answer(tmp_path):
  options = {'held_out_losses': (8.0,) * 5, 'evaluation': {'round_num': 4}}
  runs = write_methods(tmp_path, _BOTH, all=options)
  for run in runs:
    ids, losses = ('a', 'b'), {0.0: (7.0,) * 2, 0.5: (5.0,) * 2}
    write_evaluation(run, 'early', client_ids=ids, losses=losses)
  [sentence] = _sentences(runs)
  assert 'after round' not in sentence


def test_personalization_of_fewer_seeds_says_so(tmp_path):
  both = {0.0: (6.0, 6.2), 0.5: (5.0, 5.4)}
  losses = {'fed_avg': [both] * 3, 'fed_fish': [both, 5.0, 5.1]}
  first, later, *_ = _sentences(write_methods(tmp_path, losses))
  assert '; 2 clients, 3 seeds' in first
  assert 'data (1 seed, not a finding) the loss' in later


def test_runs_in_progress_are_scored_after_the_rounds_that_they_have(tmp_path):
  losses = {'fed_avg': [6.0] * 3, 'fed_fish': [5.0] * 3}
  plans = {name: {'num_rounds': 10} for name in losses}
  first, *_ = _sentences(write_methods(tmp_path / 'both', losses, **plans))
  assert 'on held-out clients after round 2 (' in first
  del plans['fed_avg']
  first, *_ = _sentences(write_methods(tmp_path / 'one', losses, **plans))
  # 10 rounds are planned.
  assert 'FedFish (10 rounds, round 2)' in first
  assert 'on held-out clients after round 2 (' in first


def test_one_client_is_no_finding(tmp_path):
  losses = {'fed_avg': [(1.0,), (1.1,), (1.2,)], 'fed_fish': [(2.0,)] * 3}
  first, *_ = _sentences(write_methods(tmp_path, losses))
  assert first.startswith('One client, not a finding: the loss of FedAvg was')


def test_one_run(tmp_path):
  run = write_run(tmp_path / 'run')
  assert _sentences([run]) == [
    '1 run without an evaluation: `fedfish evaluate` makes one.'
  ]
  early = {'round_num': 1, 'client_ids': 'ab'}
  path = write_evaluation(run, 'e', losses={0.0: (6.0, 5.0)}, **early)
  [sentence] = _sentences([run])
  # 5.5 -/+ 0.5, scaled by 12.7062 / 1.96 sqrt(2) = 9.1680.
  assert sentence == (
    'The mean loss of FedFish, E = 1 on held-out clients after round 1 is '
    '5.500 nats per token (95 % interval over clients 0.916 to 10.084), its '
    'accuracy 4.50 %; 2 clients, 1 seed; uplink 1 model.'
  )
  table = path / 'per_client.csv'
  table.write_text(table.read_text().replace(',5.0,', ',nan,'))
  assert _sentences([run]) == [
    'FedFish, E = 1 has no mean loss on held-out clients: 1 of 2 clients '
    'finite.'
  ]


def test_losses_that_are_not_compared(tmp_path):
  other = {'evaluation': {'personalization': {'sequence_length': 64}}}
  assert _sentences(write_methods(tmp_path, _BOTH, fed_fish=other)) == [
    'None of 2 runs is compared; the notes say why.'
  ]


def test_personalization_of_one_run(tmp_path):
  nan = float('nan')
  losses = [{0.0: (6.0, 6.0), 0.5: (4.0, after)} for after in (7.0, nan)]
  whole, diverged = (
    _sentences(write_methods(tmp_path / str(n), {'fed_fish': [own]}))[1]
    for n, own in enumerate(losses)
  )
  start = 'After personalization on 50 % of each client’s data '
  hurt = '. It hurts 50 % of the clients.'
  assert whole == f'{start}it is 5.500 nats per token{hurt}'
  reason = 'there is no mean loss: 1 of 2 clients finite'
  assert diverged == f'{start}{reason}{hurt}'
  # Without a score before it.
  runs = write_methods(tmp_path / 'half', {'fed_fish': [{0.5: (4.0, 7.0)}]})
  [sentence] = _sentences(runs)
  assert (
    ' on held-out clients after personalization on 50 % is 5.500' in sentence
  )
