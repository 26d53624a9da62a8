"""How many clients a mean is worth, of masses by hand and of methods."""

import types

import linear_models
import numpy as np
import planned_configs
import pytest
import tensorflow as tf

from models.model_shapes import weight_shapes
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.effective_clients import MassSums, client_mass
from tff_fedfish.evaluation.summary import EffectiveClients
from tff_fedfish.methods.fed_avg import build_fed_avg
from tff_fedfish.methods.fed_fish.process import (
  DeltaAndFisher,
  build_fed_fish,
)
from tff_fedfish.run import build
from tff_fedfish.runtime.in_process_context import set_in_process_context


def _squares(update, client_weight, state):
  return [client_weight * tf.square(update['a']), state * client_weight]


def _config(**settings):
  return planned_configs.by_hand(
    **{f'algorithm__{name}': value for name, value in settings.items()}
  )


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


def test_what_explains_them_by_hand(effective):
  effective.add(_update(1.0, 0.0), 3)
  effective.add(_update(3.0, 0.0), 1)
  summary = effective.summary()
  # a: 3 x (1, 0) and 1 x (9, 0); one of three coordinates is not informed.
  assert summary.uninformed_fraction == pytest.approx(1 / 3)
  # (3 + 1)^2 / (9 + 1).
  assert summary.of_weights == pytest.approx(1.6)


def _mix(fraction):
  """Returns sums of a method whose mass is w a."""
  return MassSums(
    lambda update, weight, _: [weight * update['a']],
    1,
    plain_mean_fraction=fraction,
  )


def test_a_mix_is_worth_what_its_mean_is():
  # One client of 8 has all the mass of coordinate 0; in 1 all weigh alike. The
  # mean that is taken is half of the plain one: its parts of coordinate 0 are
  # 1/16 + 1/2 and seven times 1/16, so 1 / ((81 + 7) / 256) = 2.91.
  found = []
  for fraction in (0.0, 0.5, 1.0):
    effective = _mix(fraction)
    for number in range(8):
      effective.add(_update(float(number == 0), 3.0, 0.0), 2)
    found.append(effective.summary())
  means = [summary.mean for summary in found]
  assert means == pytest.approx([(1 + 8) / 2, (256 / 88 + 8) / 2, 8])
  # Nobody informs coordinate 2, whatever part the plain mean has.
  assert {summary.uninformed_fraction for summary in found} == {1 / 3}


def test_a_mix_of_unequal_weights_by_hand():
  # w = (3, 1), m = (3 x 1, 1 x 9): plain parts 3/4 and 1/4, own 1/4 and 3/4.
  # A quarter of the plain ones: 3/8 and 5/8, 1 / (9/64 + 25/64).
  effective = _mix(0.25)
  effective.add(_update(1.0), 3)
  effective.add(_update(9.0), 1)
  assert effective.summary().mean == pytest.approx(64 / 34)


def test_a_mix_has_the_client_without_mass():
  # Parts of the plain mean are 1/2 and 1/2, of the other one 1 and 0.
  effective = _mix(0.5)
  effective.add(_update(4.0), 1)
  effective.add(_update(0.0), 1)
  # Of weight 0, and beyond float32: neither is in the mean.
  effective.add(_update(4.0), 0)
  effective.add(_update(float('inf')), 1)
  assert effective.summary().mean == pytest.approx(1 / (9 / 16 + 1 / 16))


def test_floor_makes_no_client_informed():
  config = _config(relative_floor=0.5)
  shapes = weight_shapes(config.model_shape()).values()
  diagonal = tuple(np.zeros(shape, np.float32) for shape in shapes)
  # One coordinate of the first tensor is informed on both clients.
  diagonal[0][0, 0] = 1.0
  found = {}
  for with_floor in (True, False):
    mass, _ = client_mass(config, with_floor=with_floor)
    effective = MassSums(mass, len(shapes))
    for _ in range(2):
      effective.add(DeltaAndFisher(diagonal, diagonal), 1.0)
    found[with_floor] = effective.summary()
  # 15 coordinates of the token embedding have the floor's mass.
  assert found[True].uninformed_fraction == 165 / 180
  assert found[False].uninformed_fraction == 179 / 180
  assert found[False].mean == 2.0


@pytest.mark.parametrize('scale', [1e-30, 1.0, 1e30])
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


@pytest.mark.parametrize(
  ('settings', 'builder'),
  [
    ({'relative_floor': 0.5, 'plain_mean_fraction': 0.25}, build_fed_fish),
    ({'name': 'fed_avg'}, build_fed_avg),
  ],
)
def test_mass_is_what_the_round_weighs_with(settings, builder):
  set_in_process_context()
  mass, s = client_mass(_config(**settings))
  process = builder(
    linear_models.linear_model(2),
    client_optimizer=linear_models.sgd(0.1),
    server_optimizer=linear_models.sgd(1.0),
    **{name: value for name, value in settings.items() if name != 'name'},
  )
  state = process.initialize()
  datasets = [
    linear_models.batches(x, y, 2) for x, y in linear_models.three_clients()
  ]
  before = process.get_model_weights(state).trainable
  output = process.next(state, datasets)
  after = process.get_model_weights(output.state).trainable

  masses, weights, deltas = [], [], []
  for client in process.trained_models(state, datasets):
    weights.append(client['client_weight'])
    masses.append(mass(client['update'], weights[-1], state.aggregator))
    deltas.append(list(map(np.subtract, before, client['trainable'])))
  assert weights == [3, 7, 4]
  for i, (old, new) in enumerate(zip(before, after, strict=True)):
    weighed = sum(m[i] * d[i] for m, d in zip(masses, deltas, strict=True))
    plain = sum(w * d[i] for w, d in zip(weights, deltas, strict=True))
    step = (1 - s) * weighed / sum(m[i] for m in masses)
    step += s * plain / sum(weights)
    np.testing.assert_allclose(old - new, step, rtol=1e-4)


def test_mass_of_a_method_of_ones_own():
  mass, s = client_mass(
    _config(name='own_methods.magnitude_mean', magnitude_power=0.5)
  )
  assert s == 0
  # w |d|^0.5.
  update = DeltaAndFisher((np.array([4.0, -9.0]), np.array(0.25)), ())
  found = mass(update, 2.0, ())
  assert list(map(list, map(np.ravel, found))) == [[4.0, 6.0], [1.0]]


def test_a_process_that_gives_no_models():
  config = _config()
  build.require_trained_models(
    config, types.SimpleNamespace(trained_models=None)
  )
  with pytest.raises(UserError) as caught:
    build.require_trained_models(config, types.SimpleNamespace())
  assert str(caught.value) == (
    'The Client-Server Barrier requires a process with `trained_models`, but '
    "the one that 'fed_fish' builds has none. Build it with "
    'tff_fedfish.rounds.compose, or leave the barrier out.'
  )
