"""The model card says what the run's files say, and what they do not."""

import dataclasses
import json
import re
import shutil

import pytest
import small_runs

from tff_fedfish.data import client_splits
from tff_fedfish.evaluation import results
from tff_fedfish.exporting import export, model_card
from tff_fedfish.exporting.trained_model import load_trained_model
from tff_fedfish.run import metrics_files

_BOTH = ('saved_model', 'safetensors')


def _card(checkpoint, formats=_BOTH):
  model = load_trained_model(checkpoint)
  return model_card.render(model_card.gather_values(model), formats)


def _in_one_line(card):
  return ' '.join(card.split())


def _rows(card):
  """First cell of every line of a table -> the other cells."""
  lines = re.findall(r'^\| (.*) \|$', card, re.MULTILINE)
  cells = [line.split(' | ') for line in lines]
  return {first.strip('`'): rest for first, *rest in cells}


def _write_evaluation(run, name, *, round_num, losses):
  """Writes an evaluation with two clients at fraction 0.5."""
  clients = [
    results.ClientEvaluation(
      client_id=b'host%d' % i,
      fraction=0.5,
      num_evaluation_sequences=2,
      num_evaluation_tokens=16,
      num_personalization_sequences=2,
      loss_before=6.0,
      accuracy_before=0.0,
      loss_after=loss,
      accuracy_after=0.25,
    )
    for i, loss in enumerate(losses)
  ]
  barriers = [
    results.ClientBarrier(
      client_id=b'host1',
      local_loss=4.0,
      global_loss=4.125,
      local_accuracy=0.5,
      global_accuracy=0.5,
    )
  ]
  summary = results.summarize_evaluation(
    clients,
    kind='held_out',
    corpus='grouped12',
    checkpoint={'round': round_num},
    personalization={'epochs': 4},
    skipped_clients={},
    barriers=barriers,
  )
  results.write_evaluation(
    run / 'evaluations' / name, summary, clients, barriers
  )


@pytest.fixture(scope='module')
def card(small_run):
  """The card of the last checkpoint."""
  return _card(small_run)


@pytest.fixture
def run(small_run, tmp_path):
  """A copy of the run, to be changed."""
  ignored = shutil.ignore_patterns('tensorboard', 'round_0000000[012]')
  return shutil.copytree(small_run, tmp_path / 'run', ignore=ignored)


class TestTraining:
  def test_method_round_and_size(self, card):
    assert card.startswith('# Language model: FedFish, round 4\n')
    # 12 L D^2 + 13 L D + V D + S D + 2 D with L = 1, D = 16, V = 256, S = 8:
    # 3,072 + 208 + 4,096 + 128 + 32.
    assert 'transformer of 7,536 parameters' in _in_one_line(card)
    assert 'FedFish, round 4 of 4.' in card
    # 4 rounds of 3 clients.
    assert '12 clients took part' in _in_one_line(card)

  def test_tokens_are_those_of_metrics_csv(self, card, small_run):
    rows = metrics_files.read_metrics(small_run / 'metrics.csv')
    total = sum(row['train/num_tokens'] for row in rows[1:])
    assert f'{total:,} tokens were trained on' in _in_one_line(card)

  def test_settings(self, card):
    rows = _rows(card)
    assert rows['algorithm.name'] == ['fed_fish']
    assert rows['algorithm.fisher_estimator'] == ['extra_pass']
    assert rows['client_work.num_local_epochs'] == ['2']
    assert rows['client_work.learning_rate'] == ['0.1']
    assert rows['server.beta_1'] == ['0.9']
    assert rows['cohorts.cohort_size'] == ['3']
    assert rows['seeds.split_seed'] == ['3']
    assert 'seeds.partition_seed' not in rows

  def test_settings_that_nothing_reads_are_left_out(self, run):
    config = json.loads((run / 'config.json').read_text())
    config['algorithm']['name'] = 'fed_avg'
    config['server']['optimizer'] = 'sgd'
    small_runs.write_config(run, config)
    changed = _card(run)
    assert changed.startswith('# Language model: FedAvg, round 4\n')
    rows = _rows(changed)
    assert rows['algorithm.client_weighting'] == ['num_examples']
    assert rows['server.learning_rate'] == ['0.001']
    assert not [name for name in rows if 'fisher_e' in name or 'beta' in name]


class TestData:
  def test_the_corpus_as_its_manifest_has_it(self, card):
    held_out = sum(
      client_splits.is_held_out(
        b'host%d.org' % i, split_seed=3, held_out_fraction=0.3
      )
      for i in range(12)
    )
    # Host i of 12 has i % 5 + 1 documents: 2 x 15 + 1 + 2.
    assert (
      'The corpus `grouped12`, grouped from the layout `c4` by `host`: 33 '
      f'documents of 12 clients, {12 - held_out} of them for training and '
      f'{held_out} held out.' in _in_one_line(card)
    )
    assert 'at most 8 tokens of a wordpiece vocabulary of 256 pieces, in' in (
      _in_one_line(card)
    )

  def test_a_part_is_named_by_its_corpus(self, run):
    identity = json.loads((run / 'corpus.json').read_text())
    identity |= {'name': 'forum', 'part': 'train'}
    (run / 'corpus.json').write_text(json.dumps(identity))
    text = _in_one_line(_card(run))
    assert 'The corpus `forum, train`, grouped from the layout `c4`' in text

  def test_a_corpus_that_is_gone(self, run):
    config = json.loads((run / 'config.json').read_text())
    config['data']['directory'] = '/nowhere/secret/forum'
    (run / 'config.json').write_text(json.dumps(config))
    changed = _card(run)
    assert (
      'The corpus `forum`. Nothing more is known of it: it could not be read '
      'when this was written.' in _in_one_line(changed)
    )
    # The name is enough.
    assert 'secret' not in changed

  def test_another_corpus_in_its_place(self, run):
    path = run / 'checkpoints' / 'round_00000004' / 'checkpoint.json'
    description = json.loads(path.read_text())
    description['contents']['corpus_fingerprint'] = 'of another one'
    path.write_text(json.dumps(description))
    assert 'another corpus was in its place when' in _in_one_line(_card(run))


class TestScores:
  def test_last_row_of_metrics_csv(self, card, small_run):
    last = metrics_files.read_metrics(small_run / 'metrics.csv')[-1]
    rows = _rows(card)
    assert float(rows['held_out/loss'][0]) == last['held_out/loss']
    assert float(rows['train/loss'][0]) == last['train/loss']
    # 4 rounds, two models up and one down.
    assert rows['communication/total_units'] == ['12']
    assert 'round' not in rows
    assert 'last scored' not in card

  def test_a_round_without_held_out_scores(self, run, small_run):
    # Scored are rounds 0, 2 and 4.
    card = _card(run / 'checkpoints' / 'round_00000003')
    assert 'FedFish, round 3 of 4.' in card
    assert '9 clients took part' in _in_one_line(card)
    assert 'Held-out clients were last scored at round 2:' in card
    rows = metrics_files.read_metrics(small_run / 'metrics.csv')
    shown = _rows(card)
    assert float(shown['held_out/loss'][0]) == rows[2]['held_out/loss']
    assert float(shown['train/loss'][0]) == rows[3]['train/loss']

  def test_evaluations_of_this_round(self, run):
    _write_evaluation(run, 'own', round_num=4, losses=(4.0, 5.0))
    _write_evaluation(run, 'early', round_num=2, losses=(5.0, 6.0))
    card = _card(run)
    clients, share, loss, interval, accuracy = _rows(card)[
      'own` (held_out, `grouped12`)'
    ]
    # (4 + 5) / 2.
    assert (clients, share, loss, accuracy) == ('2', '50%', '4.5000', '25.00%')
    low, high = map(float, interval.split(' to '))
    assert 4 <= low <= 4.5 <= high <= 5
    # 4.125 - 4.
    assert 'Client-Server Barrier (`own`): 0.1250 nats' in card
    assert '`early`' not in card
    assert 'Evaluations of other rounds in the run: 1.' in card

  def test_without_evaluations(self, card):
    assert 'Means over clients' not in card
    assert 'Barrier' not in card
    assert 'other rounds' not in card


class TestWords:
  def test_privacy(self, card):
    assert 'Federated learning was simulated' in card
    assert (
      'There is no formal guarantee: updates were not clipped and no noise was '
      'added, so the model is not differentially private.'
    ) in _in_one_line(card)
    assert 'The server took sums over the clients of a round' in card
    assert 'may have memorized parts of the texts' in card

  def test_privacy_with_a_bound_on_deltas(self, run):
    config = json.loads((run / 'config.json').read_text())
    config['client_work']['max_delta_norm'] = 0.25
    small_runs.write_config(run, config)
    card = _card(run)
    assert (
      'There is no formal guarantee: model deltas were clipped to the norm '
      '0.25, but no noise was added, so the model is not differentially '
      'private.'
    ) in _in_one_line(card)
    assert _rows(card)['client_work.max_delta_norm'] == ['0.25']

  def test_privacy_of_dp_sgd(self, run):
    config = json.loads((run / 'config.json').read_text())
    config['algorithm']['fisher_estimator'] = 'last_epoch'
    config['local_privacy'] = {'clip_norm': 0.5}
    small_runs.write_config(run, config)
    clipped = (
      'Clients trained by DP-SGD: the gradient of every row (a sequence or an '
      'image) was clipped to the norm 0.5'
    )
    only_clipped = f'{clipped}, but no noise was added: there is no formal'
    assert only_clipped in _in_one_line(_card(run))
    config['local_privacy']['noise_multiplier'] = 2.0
    small_runs.write_config(run, config)
    metrics = run / 'metrics.csv'
    head, *lines = metrics.read_text().splitlines()
    names = 'privacy/epsilon_mean,privacy/epsilon_max'
    lines = [f'{line},0.5,1.25' for line in lines]
    metrics.write_text('\n'.join([f'{head},{names}', *lines, '']))
    card = _card(run)
    found = _in_one_line(card)
    assert (
      f'{clipped}, and noise with the multiplier 2 was added to their sums. '
      'For one training row of a client, epsilon is at most 1.25 and 0.5 on '
      'average at delta 1e-05, over the clients that took part.'
    ) in found
    assert 'batches were shuffled, so that it is not a guarantee.' in found
    assert _rows(card)['local_privacy.noise_multiplier'] == ['2.0']
    assert 'seeds.privacy_seed' not in _rows(card)
    config['local_privacy']['sampling'] = 'poisson'
    small_runs.write_config(run, config)
    found = _in_one_line(_card(run))
    assert 'drawn by Poisson sampling, as that assumes.' in found

  def test_what_fed_fish_sums(self, card):
    assert (
      'The server took sums over the clients of a round, of their '
      'Fisher-weighted model deltas and Fisher diagonals. The sums were formed '
      'in the clear, without secure aggregation.'
    ) in _in_one_line(card)

  @pytest.mark.parametrize('multiplier', [0.25, 0.0])
  def test_a_method_that_clips_and_adds_noise_itself(self, run, multiplier):
    config = json.loads((run / 'config.json').read_text())
    config['algorithm'] = {
      'name': 'own_methods.noisy_mean',
      'noise_multiplier': multiplier,
    }
    small_runs.write_config(run, config)
    changed = _card(run)
    card = _in_one_line(changed)
    assert card.startswith('# Language model: Noisy mean, round 4 ')
    noise = (
      'Clients clipped their deltas to the norm 1 and added {Gaussian} noise '
      'with the multiplier 0.25.'
    )
    # Without noise the method leaves the sentence to the card.
    assert (noise in card) == (multiplier > 0)
    assert ('no noise was added' in card) == (multiplier == 0)
    assert 'of their noisy deltas and their squares. The sums' in card
    rows = _rows(changed)
    assert rows['algorithm.noise_multiplier'] == [str(multiplier)]
    assert rows['algorithm.noise_pass'] == ['batches']
    assert not [name for name in rows if name.startswith('algorithm.fisher')]

  def test_a_link_to_its_start_is_named_as_in_the_config(
    self, small_run, tmp_path
  ):
    link = tmp_path / 'link'
    link.symlink_to('gpt2')
    model = load_trained_model(small_run)
    training = dataclasses.replace(model.config.training, start_from=str(link))
    config = dataclasses.replace(model.config, training=training)
    model = dataclasses.replace(model, config=config)
    card = model_card.render(model_card.gather_values(model), _BOTH)
    assert 'from the weights of `gpt2`.' in _in_one_line(card)
    run = export.json_config(model)['run']
    assert run['training']['start_from'] == 'gpt2'

  def test_licence_is_left_to_the_publisher(self, card):
    assert 'does not record the licence of its data' in card

  def test_how_to_load_names_what_is_there(self, card, small_run):
    assert "tf.saved_model.load('saved_model')" in card
    assert "load_file('model.safetensors')" in card
    assert 'float32 [batch, length, 256]' in card
    assert 'Rows have at most 8 tokens' in card
    assert '`vocabulary/vocab.txt` is a WordPiece vocabulary' in card
    assert 'saved_model' not in _card(small_run, ['safetensors'])
    assert 'safetensors' not in _card(small_run, ['saved_model'])

  def test_lines_are_not_too_long(self, card):
    lines = card.splitlines()
    assert max(len(line) for line in lines if not line.startswith('|')) <= 80
