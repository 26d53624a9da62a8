"""Local training only as a learning process."""

import linear_models
import linear_rounds
import numpy as np
import personal_rounds

import tff_fedfish

_DATA = (
  ([1.0, 1.0, 2.0], [2.0, 4.0, 5.0]),
  ([1.0], [-3.0]),
  ([], []),
  ([1.0], [np.inf]),
)


def _trained(theta, x, y):
  """Returns theta after two passes of SGD over batches of two rows."""
  for _ in range(2):
    for start in range(0, len(x), 2):
      batch = slice(start, start + 2)
      inputs, labels = np.array(x[batch]), np.array(y[batch])
      theta = theta - 0.1 * np.mean(inputs * (theta * inputs - labels))
  return theta


def test_each_client_goes_on_with_its_own_sgd():
  process = linear_rounds.process(
    tff_fedfish.build_local_only,
    lambda: linear_models.scalar_model(0.5),
    num_local_epochs=2,
  )
  rounds = personal_rounds.Rounds(process, validates=False)
  theta = [0.5, 0.5]
  clients = [linear_models.batches(*pair, 2) for pair in _DATA]
  for _ in range(3):
    # Clients without data, or that are not finite, keep nothing.
    rounds.run(clients)
    assert sorted(rounds.kept) == [0, 1]
    theta = [_trained(t, *_DATA[n]) for n, t in enumerate(theta)]
    found = [float(rounds.kept[n]['model'][0]) for n in range(2)]
    np.testing.assert_allclose(found, theta, rtol=1e-5)
    counts = rounds.metrics['client_work']['clients']
    assert counts['num_empty_clients'] == 1
    assert counts['num_non_finite_clients'] == 1
    # The server keeps its weights, and takes no step.
    (weight,) = process.get_model_weights(rounds.state).trainable
    assert weight == 0.5
    assert rounds.metrics['finalizer'] == dict(
      update_is_non_finite=0, update_is_all_zero=0
    )
  assert found[0] > 2 and found[1] < -1
  # The model with which a client begins a round: its own.
  client = personal_rounds.argument(process, clients[1], kept=rounds.kept[1])
  (begun,) = process.personal_models(rounds.state, [client])
  np.testing.assert_array_equal(begun[0], rounds.kept[1]['model'][0])
