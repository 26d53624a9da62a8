"""PFNM: same clients, disjoint clients, averages by hand, its gains."""

import itertools

import numpy as np
import pytest
from scipy import stats
from uploaded_models import (
  ListedUploads,
  logits,
  permuted_copy,
  random_weights,
  solve,
)

from models.image_model_config import IMAGE_MODELS, ImageModelConfig
from tff_fedfish.methods.one_shot import pfnm
from tff_fedfish.methods.one_shot.permutations import (
  is_chain,
  permutation_groups,
)

_NUM_CLASSES = 4
# Few units, so that all is done within seconds on a busy machine, too.
_WIDTHS = {
  'emnist_cnn': (6, 10, 14),
  'lenet': (5, 8, 15, 11),
  'fed_net_cnn': (7, 9, 16, 12),
}


def _shape(name):
  return ImageModelConfig(
    name=name,
    num_classes=_NUM_CLASSES,
    image_shape=(28, 20, 2),
    widths=_WIDTHS.get(name),
  )


_LENET = _shape('lenet')
_CHAINS = [
  name for name in IMAGE_MODELS if is_chain(_shape(name)) and name != 'linear'
]
# Of up to five clients; class 2 has no examples.
_COUNTS = np.array(
  [[1, 0, 0, 4], [2, 3, 0, 0], [5, 1, 0, 1], [0, 0, 0, 2], [1, 1, 0, 1]]
)


def _solve(shape, models, counts=None, **settings):
  counts = _COUNTS[: len(models)] if counts is None else np.array(counts)
  uploads = ListedUploads(
    shape,
    'class_counts',
    counts.sum(1),
    [model.values() for model in models],
    [[count] for count in counts],
  )
  result = solve(uploads, shape, pfnm.Pfnm, **settings)
  for weight in result.weights:
    assert weight.dtype == np.float32
    assert weight.flags.c_contiguous
  return uploads.by_name(result.weights)


@pytest.mark.parametrize('num_clients', [1, 2, 5])
@pytest.mark.parametrize('name', _CHAINS)
def test_permuted_copies_give_client_0(name, num_clients):
  shape = _shape(name)
  weights = random_weights(shape, 0)
  copies = [permuted_copy(shape, weights, i) for i in range(1, num_clients)]
  found = _solve(shape, [weights, *copies])
  for key, weight in weights.items():
    assert found[key].shape == weight.shape
    np.testing.assert_allclose(found[key], weight, atol=1e-5)


def test_clients_that_share_nothing_stand_side_by_side():
  # Small noise: no neuron is another's. The logit of a class is the mean of the
  # clients' logits, by their examples of that class.
  shape = _shape('emnist_cnn')
  models = [random_weights(shape, seed) for seed in range(2)]
  found = _solve(shape, models, sigma=0.01, sigma0=0.05)
  for group in permutation_groups(shape):
    for axis in group.axes:
      size = found[axis.name].shape[axis.axis]
      assert size == 2 * models[0][axis.name].shape[axis.axis]
  first, second = (logits(shape, model) for model in models)
  # Examples 1 and 2, 0 and 3, none of 5 and 5, 4 and 0.
  shares = np.array([1 / 3, 0, 1 / 2, 1])
  np.testing.assert_allclose(
    logits(shape, found), shares * first + (1 - shares) * second, atol=1e-5
  )


def test_growth_is_limited():
  models = [random_weights(_LENET, seed) for seed in range(3)]
  found = _solve(_LENET, models, sigma=0.01, sigma0=0.05, max_growth=1.2)
  # 5, 8, 15 and 11 units times 1.2, rounded down; 4 x 2 pixels.
  assert [weight.shape for weight in found.values()] == [
    (5, 5, 2, 6),
    (5, 5, 6, 9),
    (4 * 2 * 9, 18),
    (18, 13),
    (13, _NUM_CLASSES),
  ]
  found = _solve(_LENET, models, sigma=0.01, sigma0=0.05, max_growth=1.0)
  for key, weight in models[0].items():
    assert found[key].shape == weight.shape


def test_some_neurons_shared_by_hand():
  # Units 0 and 1 of both hidden layers; the others are alike and do not mix
  # with them. In the first layer the clients share a; 0 has b, too, and 1 has
  # c. Of the second layer they share d; 0 has e, too, and 1 has f.
  base = random_weights(_LENET, 0)
  base['hidden_2/kernel'][:2] = 0
  base['hidden_2/kernel'][:, :2] = 0
  models = [
    {key: weight.copy() for key, weight in base.items()} for _ in range(2)
  ]
  a, b, c = 5 * np.eye(3, len(base['hidden_1/kernel']), dtype=np.float32)
  models[0]['hidden_1/kernel'][:, :2] = np.stack([a, b], 1)
  models[1]['hidden_1/kernel'][:, :2] = np.stack([c, a + 0.1], 1)
  # From (a, b, c): d = (4, 0, 0) and e = (0, 6, 0), which client 0 has in this
  # order; f = (0, 0, -8) and d = (4.2, 0, 0.2).
  models[0]['hidden_2/kernel'][:2, :2] = [[4, 0], [0, 6]]
  models[1]['hidden_2/kernel'][:2, :2] = [[-8, 0.2], [0, 4.2]]
  models[0]['head/kernel'][:2] = [[1, 2, 3, 4], [5, 6, 7, 8]]
  models[1]['head/kernel'][:2] = [[4, 3, 2, 1], [3, 2, 5, 4]]
  # Examples 1 and 3, 0 and 1, none of 2 and 6, 1 and 2. p = (1/4, 3/4).
  counts = [[1, 0, 0, 1], [3, 1, 0, 2]]
  found = _solve(_LENET, models, counts, sigma=0.1, sigma0=0.5)
  # The units of client 0, then c and f.
  first, second, head = (
    found[f'{name}/kernel'] for name in ('hidden_1', 'hidden_2', 'head')
  )
  assert [weight.shape[-1] for weight in (first, second)] == [16, 12]
  # a is the mean of a and a + 0.1.
  np.testing.assert_allclose(
    first[:, [0, 1, 15]], np.stack([a + 0.05, b, c], 1), rtol=1e-6
  )
  np.testing.assert_allclose(
    second[[0, 1, 15]][:, [0, 1, 11]],
    [[4.1, 0, 0], [0, 6, 0], [0.1, 0, -8]],
    rtol=1e-6,
  )
  # Shares of client 0: 1/4, 0, 1/4 and 1/3.
  # d: 1/4 + 3/4 * 3 = 2.5; 2; 3/4 + 15/4 = 4.5; 4/3 + 8/3 = 4.
  # e: 5/4, 0, 7/4, 8/3. f: 3/4 * 4 = 3; 3; 3/4 * 2 = 1.5; 2/3.
  np.testing.assert_allclose(
    head[[0, 1, 11]],
    [[2.5, 2, 4.5, 4], [1.25, 0, 1.75, 8 / 3], [3, 3, 1.5, 2 / 3]],
    rtol=1e-6,
  )
  # The others stay.
  np.testing.assert_allclose(
    second[2:15, 2:11], base['hidden_2/kernel'][2:, 2:], rtol=1e-6
  )


def test_gains_are_the_joint_density_of_matches_and_neurons():
  # Against SciPy's densities of all neurons, for all matches of a client.
  random = np.random.default_rng(1)
  settings = pfnm.Pfnm(sigma=0.6, sigma0=1.1, gamma=1.7)
  dimensions, num_clients = 3, 4
  seen = [random.normal(size=(m, dimensions)) for m in (1, 3)]
  rows = random.normal(size=(3, dimensions))

  def neuron(vectors):
    """Returns log p of all clients' vectors of one global neuron."""
    m = len(vectors)
    covariance = 0.6**2 * np.eye(m) + 1.1**2 * np.ones([m, m])
    return sum(
      stats.multivariate_normal.logpdf(v, np.zeros(m), covariance)
      for v in np.transpose(vectors)
    )

  def joint(places):
    score = 0.0
    for i, others in enumerate(seen):
      own = [rows[line] for line in range(3) if places[line] == i]
      score += neuron(np.vstack([others, *own]))
      score += stats.bernoulli.logpmf(len(own), len(others) / num_clients)
    new = [line for line in range(3) if places[line] >= 2]
    score += sum(neuron(rows[[line]]) for line in new)
    return score + stats.poisson.logpmf(len(new), 1.7 / num_clients)

  gain = pfnm.gains(
    rows,
    np.stack([others.sum(0) for others in seen]),
    np.array([1, 3]),
    settings,
    num_clients,
    3,
  )
  # New neurons are numbered from 2 on without gaps.
  matches = [
    places
    for places in itertools.permutations(range(5), 3)
    if sorted(p for p in places if p >= 2)
    == list(range(2, 2 + sum(p >= 2 for p in places)))
  ]
  differences = [
    joint(places) - gain[range(3), places].sum() for places in matches
  ]
  assert len(matches) > 20
  np.testing.assert_allclose(differences, differences[0], rtol=1e-9)
