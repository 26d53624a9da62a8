"""Few classes per client, shards, one class, and test splits that match."""

import numpy as np
import pytest

from tff_fedfish.data.images import partition_schemes
from tff_fedfish.data.images.label_draws import label_histograms
from tff_fedfish.errors import UserError


class TestFixedClasses:
  def _histograms(self, labels, num_classes, **changes):
    parameters = dict(num_clients=4, seed=1, classes_per_client=2) | changes
    parts = partition_schemes.fixed_classes(
      labels, num_classes=num_classes, **parameters
    )
    return label_histograms(labels, parts, num_classes)

  def test_a_class_is_divided_evenly_among_its_clients(self):
    labels = np.repeat(np.arange(5), 61)
    found = self._histograms(labels, 5, num_clients=12, classes_per_client=3)
    for client, row in enumerate(found):
      assert np.count_nonzero(row) == 3
      assert row[client % 5] > 0
    for column in found.T:
      sizes = column[column > 0]
      # 61 among k: sizes differ by at most one.
      assert sizes.sum() == 61 and sizes.max() - sizes.min() <= 1
    # Others than the first are drawn: not all clients of a class have the same.
    assert len({tuple(row > 0) for row in found}) > 5

  def test_one_class_each(self):
    found = self._histograms(
      np.repeat(np.arange(4), 7), 4, classes_per_client=1
    )
    assert found.tolist() == (7 * np.eye(4, dtype=int)).tolist()

  def test_every_class(self):
    found = self._histograms(np.repeat([0, 1], 8), 2)
    assert found.tolist() == [[2, 2]] * 4

  def test_draws_again_until_every_class_has_a_client(self):
    # Clients 0 and 1 have classes 0 and 1 and one more of three: that these
    # are 2 and 3, in some order, has probability 2/9.
    for seed in range(8):
      found = self._histograms(
        np.repeat(np.arange(4), 5), 4, num_clients=2, seed=seed
      )
      assert found.sum(axis=0).tolist() == [5] * 4

  def test_gives_up(self, monkeypatch):
    monkeypatch.setattr(partition_schemes, 'MAX_ATTEMPTS', 30)
    # One class each: client 0 has class 0, client 1 class 1, nobody class 2.
    with pytest.raises(
      UserError,
      match='`classes_per_client` is 1, but in 30 draws some class always '
      'had none of the 2 clients. Raise',
    ):
      self._histograms(np.array([0, 2]), 3, num_clients=2, classes_per_client=1)

  def test_too_few_clients(self):
    with pytest.raises(
      UserError,
      match='`num_clients` x `classes_per_client` must reach the 9 classes '
      'that there are, found 4 x 2',
    ):
      self._histograms(np.arange(9), 9)

  def test_too_many_classes(self):
    with pytest.raises(UserError, match='exceed the 3 classes, found 4. Lower'):
      self._histograms(np.arange(3), 3, classes_per_client=4)


class TestPathologicalShards:
  _PARAMETERS = dict(num_classes=4, num_clients=6, seed=3, shards_per_client=2)

  def test_rows_name_each_class_equally_often(self):
    rows = partition_schemes.class_rows(**self._PARAMETERS)
    assert rows.shape == (6, 2)
    # 6 * 2 / 4 shards of each.
    assert np.bincount(rows.ravel()).tolist() == [3] * 4
    # They are shuffled.
    assert rows.ravel().tolist() != sorted(rows.ravel())

  def test_a_client_gets_a_shard_each_time_a_row_names_a_class(self):
    # Classes of 9, 12, 15 and 3 examples in three shards: 3, 4, 5 and 1.
    labels = np.repeat(np.arange(4), [9, 12, 15, 3])
    parts = partition_schemes.pathological_shards(labels, **self._PARAMETERS)
    rows = partition_schemes.class_rows(**self._PARAMETERS)
    expected = [np.bincount(row, minlength=4) * [3, 4, 5, 1] for row in rows]
    found = label_histograms(labels, parts, 4)
    assert found.tolist() == np.array(expected).tolist()

  def test_a_class_may_be_had_twice(self):
    rows = [
      partition_schemes.class_rows(**(self._PARAMETERS | dict(seed=seed)))
      for seed in range(20)
    ]
    twice = np.sum([row[:, 0] == row[:, 1] for row in rows])
    # A second shard is of the same class with probability 2/11: 21.8 of 120.
    assert 2 <= twice <= 42

  def test_shards_that_do_not_come_out_even(self):
    with pytest.raises(
      UserError,
      match='`num_clients` x `shards_per_client` must be a multiple of the 4 '
      'classes, found 5 x 2',
    ):
      partition_schemes.class_rows(**(self._PARAMETERS | dict(num_clients=5)))


class TestLatentDistributions:
  def test_by_hand(self):
    # Classes 2 and 5, three clients: 0 and 2 share the four of class 2.
    labels = np.array([5, 2, 2, 5, 2, 5, 2])
    parts = partition_schemes.latent_distributions(
      labels, num_classes=6, num_clients=3, seed=1
    )
    assert [labels[part].tolist() for part in parts] == [
      [2, 2],
      [5, 5, 5],
      [2, 2],
    ]

  def test_fewer_clients_than_classes(self):
    with pytest.raises(
      UserError, match='at least the number of latent dist.*, 3, found 2. Raise'
    ):
      partition_schemes.latent_distributions(
        np.arange(3), num_classes=3, num_clients=2, seed=1
      )


class TestMatchingSplit:
  def test_by_hand(self):
    # Class 0, 3 : 1 in training: 8 end at 8 * 3 // 4 = 6. Class 1 is nobody's.
    # Class 2, 1 : 1: 3 end at 3 // 2 = 1.
    labels = np.array([0] * 8 + [1] * 5 + [2] * 3)
    histograms = np.array([[3, 0, 1], [1, 0, 1]])
    parts = partition_schemes.matching_split(labels, histograms, seed=1)
    assert label_histograms(labels, parts, 3).tolist() == [[6, 0, 1], [2, 0, 2]]

  def test_hands_out_tests_by_the_rows_of_the_shards(self):
    # FedFomo: the test split goes by the same rows. 8 training and 4 test
    # examples of a class in 4 shards: 2 and 1 each.
    parameters = dict(num_classes=3, num_clients=6, seed=5, shards_per_client=2)
    train = np.repeat(np.arange(3), 8)
    parts = partition_schemes.pathological_shards(train, **parameters)
    histograms = label_histograms(train, parts, 3)
    test = np.repeat(np.arange(3), 4)
    parts = partition_schemes.matching_split(test, histograms, seed=5)
    found = label_histograms(test, parts, 3)
    assert (2 * found).tolist() == histograms.tolist()
