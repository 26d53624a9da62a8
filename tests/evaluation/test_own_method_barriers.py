"""The barrier and effective clients of methods outside the package."""

import functools
import json

import numpy as np
import planned_configs
import pytest
import small_runs
import tensorflow_federated as tff

from tff_fedfish.cli.main import main
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation import results
from tff_fedfish.evaluation.evaluator import build_evaluator
from tff_fedfish.run import (
  build,
  client_data,
  cohorts,
  run_directory,
  tables,
)
from tff_fedfish.run.row_source import row_source


@pytest.fixture(scope='module')
def measure(small_inputs, tmp_path_factory):
  """Trains a round of a method, measured, and evaluates the start.

  Returns a function of the method's name. It returns the run's directory, the
  evaluation's, the config and the round's (client id, training rows).
  """

  def train_and_evaluate(name, **settings):
    workdir = tmp_path_factory.mktemp(name) / 'run'
    code = small_runs.train(
      small_inputs,
      workdir,
      algorithm__name=name,
      training__num_rounds=1,
      evaluation__barrier_every_num_rounds=1,
      **settings,
    )
    assert code == 0
    start = workdir / 'checkpoints' / 'round_00000000'
    output = workdir / 'evaluations' / 'start'
    arguments = ['--checkpoint', str(start), '--data', str(small_inputs[0])]
    arguments += ['--output', str(output), '--barrier']
    arguments += ['--fractions', '0', '--max_clients', '1']
    assert main(['evaluate', *arguments]) == 0
    config = run_directory.read_config(workdir)
    return workdir, output, config, _cohort(config, workdir)

  return functools.cache(train_and_evaluate)


def _cohort(config, workdir):
  corpus = client_data.open_corpus(config, config.data.directory)
  tokenizer = client_data.open_tokenizer(config, workdir / 'vocabulary')
  return cohorts.cohort(
    config,
    row_source(config).split(corpus).participating,
    row_source(config).client_rows(corpus, tokenizer),
    1,
  )


def _effective_clients(output):
  return json.loads((output / 'summary.json').read_text())['effective_clients']


def _kish(masses):
  return np.sum(masses, 0) ** 2 / np.sum(np.square(masses), 0)


def test_clients_train_as_those_of_the_method(measure):
  workdir, output, config, cohort = measure('own_methods.first_epoch')
  assert config.client_work.num_local_epochs == 2
  process = build.build_learning_process(config)
  evaluator = build_evaluator(config)
  state = process.initialize()
  before = tuple(process.get_model_weights(state).trainable)

  def loss_after(client, num_local_epochs):
    rows = client.sequences()
    trained = evaluator.fine_tune(
      before,
      rows,
      num_local_epochs=num_local_epochs,
      learning_rate=config.client_work.learning_rate,
    )
    return evaluator.score(trained, rows).loss

  barriers = results.read_evaluation(output).barriers
  found = barriers.set_index('client_id')['local_loss'].to_dict()
  assert found == pytest.approx(
    {client.client_id: loss_after(client, 1) for client in cohort}, rel=1e-6
  )
  # Those of FedAvg are other models.
  for client in cohort:
    assert found[client.client_id] > loss_after(client, 2) + 1e-4
  row = tables.read_metrics(workdir / 'metrics.csv')[1]
  summary = json.loads((output / 'summary.json').read_text())
  loss = summary['client_server_barrier']['loss']
  assert row['barrier/loss'] == loss['mean']


def test_without_a_mass_clients_count_by_their_weight(measure):
  _, output, _, cohort = measure('own_methods.first_epoch')
  sizes = np.array([len(client.sequences()) for client in cohort], float)
  assert len(set(sizes)) > 1
  effective = _effective_clients(output)
  assert effective['mean'] == pytest.approx(_kish(sizes))
  assert effective['mean'] == pytest.approx(effective['of_weights'])


def test_with_a_mass_clients_count_by_it(measure):
  _, output, config, cohort = measure(
    'own_methods.magnitude_mean', algorithm__magnitude_power=0.5
  )
  process = build.build_learning_process(config)
  trained = process.trained_models(process.initialize(), cohort)
  # w |d|^0.5.
  masses = np.array(
    [
      client['client_weight']
      * np.concatenate(
        [np.abs(d).ravel() ** 0.5 for d in client['update'].model_delta]
      )
      for client in trained
    ],
    np.float64,
  )
  expected = _kish(masses[:, masses.sum(0) > 0]).mean()
  assert 1 < expected < 3
  found = _effective_clients(output)['mean']
  assert found == pytest.approx(expected, rel=1e-5)


def test_a_process_that_gives_no_models():
  config = planned_configs.by_hand()
  process = build.build_learning_process(config)
  build.require_trained_models(config, process)
  plain = tff.learning.templates.LearningProcess(
    process.initialize,
    process.next,
    process.get_model_weights,
    process.set_model_weights,
  )
  with pytest.raises(UserError) as caught:
    build.require_trained_models(config, plain)
  assert str(caught.value) == (
    'The Client-Server Barrier requires a process with `trained_models`, but '
    "the one that 'fed_fish' builds has none. Build it with "
    'tff_fedfish.rounds.compose, or leave the barrier out.'
  )
