"""Pachinko by hand: what is drawn, and what is left out once it is used up."""

import numpy as np
import pytest

from tff_fedfish.data.images import pachinko
from tff_fedfish.data.images.label_draws import label_histograms
from tff_fedfish.errors import UserError

# Coarse class 0 has the fine classes 0 and 2, coarse class 1 has 1 and 3.
_LABELS = np.repeat([0, 2, 1, 3], [1, 2, 1, 2])
_COARSE = np.array([0, 0, 0, 1, 1, 1])


def _split(**changes):
  parameters = dict(num_clients=2, seed=1, examples_per_client=3) | changes
  return pachinko.pachinko(
    _LABELS, coarse_labels=_COARSE, num_classes=4, **parameters
  )


def test_used_up_classes_are_left_out(monkeypatch):
  # All want the first coarse class and its first fine class: client 0 takes
  # the one of class 0, then both of class 2; client 1 finds coarse class 1.
  asked = []

  def log_dirichlet(generator, concentrations):
    asked.append(concentrations.tolist())
    # Fine classes 0 and 1 are the first of their coarse classes.
    return np.array([0.0, -700.0] if len(asked) % 2 else [0, 0, -700, -700])

  monkeypatch.setattr(pachinko, 'log_dirichlet', log_dirichlet)
  found = label_histograms(_LABELS, _split(), 4).tolist()
  assert found == [[1, 0, 2, 0], [0, 1, 0, 2]]
  # The coarse classes, then all fine ones, for each client.
  assert asked == [[0.1] * 2, [10.0] * 4] * 2


def test_concentrations_say_how_many_classes_a_client_has():
  labels = np.repeat(np.arange(30), 40)
  coarse = labels // 3  # 10 coarse classes of 3.

  def coarse_shares(**changes):
    parts = pachinko.pachinko(
      labels,
      coarse_labels=coarse,
      num_classes=30,
      num_clients=4,
      seed=2,
      examples_per_client=100,
      **changes,
    )
    return label_histograms(coarse, parts, 10) / 100

  # The largest of ten shares ~ Dir(0.1) is about 0.6 on average, of ten that
  # are nearly equal about 0.15.
  assert coarse_shares().max(axis=1).mean() > 0.35
  assert coarse_shares(root_alpha=1e6).max(axis=1).mean() < 0.25


def test_fine_classes_follow_the_leaves():
  labels = np.repeat([0, 1], 2_000)
  parts = pachinko.pachinko(
    labels,
    coarse_labels=np.zeros(4_000, int),
    num_classes=2,
    num_clients=1,
    seed=2,
    examples_per_client=1_000,
    leaf_alpha=1e6,
  )
  # 1,000 draws at 1/2: 500 with deviation 15.8.
  assert abs(np.bincount(labels[parts[0]])[0] - 500) < 79


def test_what_nobody_draws_is_dropped():
  parts = _split(examples_per_client=2)
  assert [len(part) for part in parts] == [2, 2]
  assert len(set(np.concatenate(parts))) == 4


def test_more_than_there_is():
  with pytest.raises(
    UserError,
    match='`num_clients` x `examples_per_client` must not exceed the 6 '
    'examples, found 2 x 4. Lower',
  ):
    _split(examples_per_client=4)


def test_a_fine_class_in_two_coarse_ones():
  coarse = np.array([0, 0, 1, 1, 1, 1])
  with pytest.raises(
    UserError,
    match='each of the 4 fine classes must have one coarse class, but there '
    'are 5 pairs of the two',
  ):
    pachinko.pachinko(
      _LABELS,
      coarse_labels=coarse,
      num_classes=4,
      num_clients=2,
      seed=1,
      examples_per_client=3,
    )
