"""How many clients a mean is worth, of masses by hand and of methods."""

import json

import numpy as np
import planned_configs
import pytest
import small_runs
import tensorflow as tf

from models.model_shapes import weight_shapes
from tff_fedfish.cli.main import main
from tff_fedfish.data.sequences import Sequences, to_dataset
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.effective_clients import MassSums, client_mass
from tff_fedfish.evaluation.summary import EffectiveClients
from tff_fedfish.methods.fed_fish.process import DeltaAndFisher
from tff_fedfish.run import build


def _squares(update, client_weight, state):
  return [client_weight * tf.square(update['a']), state * client_weight]


@pytest.fixture
def effective():
  return MassSums(_squares, 2, aggregator_state=2.0)


def _update(*values):
  return {'a': np.array(values, np.float32)}


def test_by_hand(effective):
  # a: 2 (1, 4) and 1 (0, 0) + (4, 0) = (2, 8) and (4, 0): 36 / 20 = 1.8 and 1.
  # b: 2 x 2 and 2 x 1: 36 / 20 = 1.8.
  effective.add(_update(1.0, 2.0), 2)
  effective.add(_update(2.0, 0.0), 1)
  # Three coordinates.
  assert effective.summary().mean == pytest.approx((1.8 + 1 + 1.8) / 3)


def test_coordinates_without_mass_do_not_count(effective):
  effective.add(_update(1.0, 0.0), 2)
  effective.add(_update(1.0, 0.0), 2)
  # a: 2, and nothing; b: 2.
  assert effective.summary().mean == 2.0


def test_what_explains_them_by_hand(effective):
  effective.add(_update(1.0, 0.0), 3)
  effective.add(_update(3.0, 0.0), 1)
  found = effective.summary()
  # a: 3 x (1, 0) and 1 x (9, 0); one of three coordinates is not informed.
  assert found.uninformed_fraction == pytest.approx(1 / 3)
  # (3 + 1)^2 / (9 + 1).
  assert found.of_weights == pytest.approx(1.6)


def test_a_mix_is_worth_what_its_mean_is():
  # One client of 8 has all the mass of coordinate 0; in 1 all weigh alike. The
  # mean that is taken is half of the plain one: its parts of coordinate 0 are
  # 1/16 + 1/2 and seven times 1/16, so 1 / ((81 + 7) / 256) = 2.91.
  def mass(update, client_weight, state):
    return [client_weight * update['a']]

  found = {}
  for fraction in (0.0, 0.5, 1.0):
    effective = MassSums(mass, 1, plain_mean_fraction=fraction)
    for number in range(8):
      effective.add(_update(float(number == 0), 3.0, 0.0), 2)
    found[fraction] = effective.summary()
  means = [summary.mean for summary in found.values()]
  assert means == pytest.approx([(1 + 8) / 2, (256 / 88 + 8) / 2, 8])
  # Nobody informs coordinate 2, whatever part the plain mean has.
  fractions = {summary.uninformed_fraction for summary in found.values()}
  assert fractions == {1 / 3}


def test_a_mix_of_unequal_weights_by_hand():
  # w = (3, 1), m = (3 x 1, 1 x 9): plain parts 3/4 and 1/4, own 1/4 and 3/4.
  # A quarter of the plain ones: 3/8 and 5/8, 1 / (9/64 + 25/64).
  effective = MassSums(
    lambda update, weight, _: [weight * update['a']],
    1,
    plain_mean_fraction=0.25,
  )
  effective.add(_update(1.0), 3)
  effective.add(_update(9.0), 1)
  assert effective.summary().mean == pytest.approx(64 / 34)


def test_a_mix_has_the_client_without_mass():
  # Parts of the plain mean are 1/2 and 1/2, of the other one 1 and 0.
  effective = MassSums(
    lambda update, weight, _: [weight * update['a']],
    1,
    plain_mean_fraction=0.5,
  )
  effective.add(_update(4.0), 1)
  effective.add(_update(0.0), 1)
  # Of weight 0, and beyond float32: neither is in the mean.
  effective.add(_update(4.0), 0)
  effective.add(_update(float('inf')), 1)
  assert effective.summary().mean == pytest.approx(1 / (9 / 16 + 1 / 16))


def test_fed_fish_mix_counts_the_plain_mean(small_inputs, tmp_path):
  summaries = {}
  for fraction in (0.0, 0.5):
    run = tmp_path / str(fraction)
    code = small_runs.train(
      small_inputs,
      run,
      algorithm__plain_mean_fraction=fraction,
      training__num_rounds=1,
    )
    assert code == 0
    arguments = ['--checkpoint', str(run / 'checkpoints' / 'round_00000000')]
    arguments += ['--data', str(small_inputs[0]), '--barrier']
    arguments += ['--fractions', '0', '--max_clients', '1']
    output = tmp_path / f'evaluation_{fraction}'
    assert main(['evaluate', *arguments, '--output', str(output)]) == 0
    summary = json.loads((output / 'summary.json').read_text('utf-8'))
    summaries[fraction] = summary['effective_clients']
  # The same clients and masses; what they are worth is between the two.
  assert summaries[0.0]['of_weights'] == summaries[0.5]['of_weights']
  sizes = summaries[0.0]['mean'], summaries[0.5]['mean']
  assert sizes[0] + 0.05 < sizes[1] < summaries[0.5]['of_weights'] + 1e-6


def test_floor_makes_no_client_informed():
  config = planned_configs.by_hand(algorithm__relative_floor=0.5)
  diagonals = [
    tuple(
      np.zeros(shape, np.float32)
      for shape in weight_shapes(config.model_shape()).values()
    )
    for _ in range(2)
  ]
  for diagonal in diagonals:
    # One coordinate of the first tensor is informed on both.
    diagonal[0][0, 0] = 1.0
  updates = [DeltaAndFisher(d, d) for d in diagonals]
  num_tensors = len(weight_shapes(config.model_shape()))
  found = {}
  for with_floor in (True, False):
    mass, _ = client_mass(config, with_floor=with_floor)
    effective = MassSums(mass, num_tensors)
    for update in updates:
      effective.add(update, 1.0)
    found[with_floor] = effective.summary()
  # 15 coordinates of the token embedding have the floor's mass.
  assert found[True].uninformed_fraction == 165 / 180
  assert found[False].uninformed_fraction == 179 / 180
  assert found[False].mean == 2.0


@pytest.mark.parametrize('scale', [1e-30, 1e-12, 1.0, 2e10, 1e30])
def test_masses_of_any_size(effective, scale):
  for _ in range(4):
    effective.add(_update(scale**0.5, 0.0), 1)
  # And one that hardly counts.
  effective.add(_update((1e-3 * scale) ** 0.5, 0.0), 1)
  # 4.001^2 / 4.000001; b: 5.
  assert effective.summary().mean == pytest.approx((4.002 + 5) / 2, rel=1e-5)


@pytest.mark.parametrize('bad', [float('nan'), float('inf')])
def test_client_whose_mass_is_not_finite_has_none(effective, bad):
  effective.add(_update(1.0, 2.0), 2)
  effective.add(_update(bad, 2.0), 2)
  assert effective.summary().mean == 1.0


def test_client_without_weight_has_no_mass():
  # Whatever the mass function says of it.
  effective = MassSums(lambda update, *_: [update['a']], 1)
  effective.add(_update(1.0, 2.0), 2)
  effective.add(_update(1.0, 2.0), 0)
  assert effective.summary().mean == 1.0


@pytest.mark.parametrize(('num_tensors', 'found'), [(1, '1'), (3, '3')])
def test_mass_of_more_or_fewer_tensors(num_tensors, found):
  effective = MassSums(lambda update, *_: [update['a']] * num_tensors, 2)
  with pytest.raises(UserError) as error:
    effective.add(_update(1.0, 2.0), 2)
  assert str(error.value) == (
    "The method's `mass` must return one tensor for each of the 2 "
    f'trainable tensors, but returns {found}. Correct it.'
  )
  # No part of it was added.
  assert effective.summary().mean is None


def test_no_clients(effective):
  assert effective.summary() == EffectiveClients(
    mean=None, uninformed_fraction=None, of_weights=None
  )


def _clients():
  """Returns 3 clients of 1, 4 and 5 sequences."""
  clients = []
  for number, size in enumerate((1, 4, 5)):
    random = np.random.RandomState(number)
    tokens = random.randint(5, size=(size, 5)).astype(np.int32)
    clients.append(Sequences(tokens, np.full(size, 4, np.int32)))
  return clients


@pytest.mark.parametrize(
  'settings',
  [
    dict(fisher_estimator='last_epoch'),
    pytest.param(
      dict(client_weighting='uniform', fisher_reduction='mean'),
      marks=pytest.mark.slow,
    ),
    pytest.param(dict(relative_floor=0.5), marks=pytest.mark.slow),
    pytest.param(dict(name='fed_avg'), marks=pytest.mark.slow),
    pytest.param(dict(), marks=pytest.mark.slow),
    pytest.param(dict(fisher_estimator='example_sq'), marks=pytest.mark.slow),
    pytest.param(
      dict(fisher_normalization='tensor_mean'), marks=pytest.mark.slow
    ),
  ],
  ids=lambda settings: '-'.join(map(str, settings.values())) or 'default',
)
def test_mass_is_what_the_round_weighs_with(settings):
  config = planned_configs.by_hand(
    server__optimizer='sgd',
    server__learning_rate=1.0,
    client_work__learning_rate=0.5,
    **{f'algorithm__{name}': value for name, value in settings.items()},
  )
  clients = _clients()
  process = build.build_learning_process(config)
  state = process.initialize()
  datasets = [to_dataset(rows, 2) for rows in clients]
  before = process.get_model_weights(state).trainable
  output = process.next(state, datasets)
  after = process.get_model_weights(output.state).trainable

  mass_of, _ = client_mass(config)
  numerators, masses = [], []
  for client in process.trained_models(state, datasets):
    mass = mass_of(client['update'], client['client_weight'], state.aggregator)
    masses.append(mass)
    numerators.append(
      [
        m * (b - t)
        for m, b, t in zip(mass, before, client['trainable'], strict=True)
      ]
    )
  steps = [
    sum(n[i] for n in numerators) / sum(m[i] for m in masses)
    for i in range(len(before))
  ]
  assert max(np.abs(step).max() for step in steps) > 0.1
  for found, old, step in zip(after, before, steps, strict=True):
    np.testing.assert_allclose(old - step, found, rtol=1e-4, atol=1e-6)
