"""Training and evaluation on images, from end to end with seven writers."""

import csv
import json
import shutil

import numpy as np
import pytest
import small_image_runs
from stateful_runs import assert_same_run

from tff_fedfish.cli.main import main
from tff_fedfish.evaluation.results import read_evaluation
from tff_fedfish.run import checkpoints, tables

# With batches of 4 the writers have 2 each; all of it by hand:
# 5 + 6 + 6 + 6 images of a round, 7 - 6 and 9 - 6 beyond the cap.
_NUM_IMAGES, _NUM_DROPPED = 23, 4


@pytest.fixture(scope='module')
def corpus(small_images):
  return small_images


@pytest.fixture(scope='module')
def run(small_image_run):
  return small_image_run


def _evaluate(run, corpus, output, *options):
  arguments = ['--checkpoint', str(run), '--data', str(corpus)]
  return main(['evaluate', *arguments, '--output', str(output), *options])


def test_what_a_run_leaves_behind(run):
  rows = tables.read_metrics(run / 'metrics.csv')
  assert [row['round'] for row in rows] == [0, 1, 2, 3]
  for row in rows[1:]:
    assert row['train/num_clients'] == 4
    # Two local epochs.
    assert row['train/num_tokens'] == 2 * _NUM_IMAGES
    assert row['train/num_sequences'] == 2 * _NUM_IMAGES
    assert row['train/num_dropped_sequences'] == _NUM_DROPPED
    assert row['train/num_dropped_tokens'] == _NUM_DROPPED
  # Two test writers have the 4 images that an evaluation needs.
  assert all(row['held_out/num_clients'] == 2 for row in rows)
  # Before the first round about as good as chance, ln 10 = 2.303.
  assert rows[0]['held_out/loss'] == pytest.approx(np.log(10), abs=0.3)
  assert rows[3]['held_out/loss'] < rows[0]['held_out/loss']
  # The barrier is not measured.
  timings = tables.read_metrics(run / 'timings.csv')
  assert not [name for name in rows[0] | timings[0] if 'barrier' in name]
  assert not (run / 'vocabulary').exists()
  config = json.loads((run / 'config.json').read_text())
  assert config['data']['corpus'] == 'mnist_by_writer'
  assert checkpoints.list_rounds(run / 'checkpoints') == [0, 1, 2, 3]


def test_resumed_run_equals_uninterrupted_bit_for_bit(corpus, run, tmp_path):
  # As if it had been killed in round 3, before its checkpoint was whole. With
  # the same config the graphs are at hand.
  workdir = shutil.copytree(run, tmp_path / 'resumed')
  for round_num in (2, 3):
    shutil.rmtree(checkpoints.path_of(workdir / 'checkpoints', round_num))
  assert small_image_runs.train(corpus, workdir) == 0
  assert_same_run(workdir, run)


def test_evaluation_of_the_corpus_own_held_out_clients(run, corpus, tmp_path):
  output = tmp_path / 'evaluation'
  options = ('--fractions', '0,0.5', '--personalization_epochs', '1')
  assert _evaluate(run, corpus, output, *options) == 0
  with open(output / 'per_client.csv', newline='') as file:
    rows = list(csv.DictReader(file))
  # Writer 73 has 3 images, too few; of 8 images 4 are scored, of 4 two.
  assert {
    (row['client_id'], row['num_evaluation_sequences']) for row in rows
  } == {('writer-0071', '4'), ('writer-0072', '2')}
  summary = json.loads((output / 'summary.json').read_text())
  assert summary['kind'] == 'held_out'
  assert summary['num_clients'] == 2
  assert summary['skipped_clients']['too_few_sequences'] == 1
  assert summary['personalization']['sequence_length'] is None
  # The run scored the same halves after its last round.
  metrics = tables.read_metrics(run / 'metrics.csv')
  loss = np.mean(
    [float(r['loss_after']) for r in rows if r['fraction'] == '0.0']
  )
  assert loss == pytest.approx(metrics[-1]['held_out/loss'], rel=1e-5)


def test_other_clients_of_the_same_kind_are_a_transfer(run, corpus, tmp_path):
  other = small_image_runs.write_corpus(tmp_path / 'other')
  path = other / 'qmnist-test-labels-idx2-int'
  data = bytearray(path.read_bytes())
  # Row 0, column 2 of int32 after 4 + 2 * 4 bytes: another writer.
  data[12 + 11] = 99
  path.write_bytes(data)
  assert _evaluate(run, other, tmp_path / 'e', '--fractions', '0') == 0
  summary = json.loads((tmp_path / 'e' / 'summary.json').read_text())
  assert summary['kind'] == 'transfer'
  # All with 4 images or more, the writers of the train split among them.
  assert summary['num_clients'] >= 5


@pytest.mark.slow
def test_replayed_client_meets_the_noise_of_its_round(corpus, tmp_path):
  # One client, FedAvg and a server step of 1: the new global model is what the
  # client trained, so the barrier is 0 if, and only if, its training is
  # replayed with the same dropout.
  workdir = tmp_path / 'one'
  settings = dict(
    algorithm__name='fed_avg',
    server__optimizer='sgd',
    server__learning_rate=1.0,
    cohorts__cohort_size=1,
    training__num_rounds=1,
    evaluation__num_clients=0,
  )
  assert small_image_runs.train(corpus, workdir, **settings) == 0
  start = workdir / 'checkpoints' / 'round_00000000'
  options = ('--fractions', '0', '--barrier')
  assert _evaluate(start, corpus, tmp_path / 'e', *options) == 0
  with open(tmp_path / 'e' / 'barrier.csv', newline='') as file:
    (row,) = csv.DictReader(file)
  local, global_ = float(row['local_loss']), float(row['global_loss'])
  assert global_ == pytest.approx(local, abs=1e-5)
  # It was trained at all: the initial model's loss is near ln 10.
  found = read_evaluation(tmp_path / 'e')
  assert abs(local - found.clients['loss_after'].mean()) > 1e-3


def test_images_have_no_sequence_length(run, corpus, tmp_path, capsys):
  assert _evaluate(run, corpus, tmp_path / 'e', '--sequence_length', '8') == 2
  assert (
    '`--sequence_length` must be left out with images, found 8.'
  ) in capsys.readouterr().err


def test_evaluation_needs_the_same_kind_of_corpus(run, tmp_path, capsys):
  (tmp_path / 'manifest.json').write_text('{}')
  assert _evaluate(run, tmp_path, tmp_path / 'e') == 2
  error = capsys.readouterr().err
  assert "Corpus 'mnist_by_writer' requires train-images-idx3-ubyte" in error
  assert 'train-images-idx3-ubyte is not there' in error


def test_generate_names_what_it_takes(run, capsys):
  assert main(['generate', '--checkpoint', str(run)]) == 2
  assert (
    f'`--checkpoint` must be of a language model, but {str(run)!r} trained '
    "'emnist_cnn' on images. Name the run of a language model."
  ) in capsys.readouterr().err
