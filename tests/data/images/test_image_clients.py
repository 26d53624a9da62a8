"""Contents of image clients, their fingerprint, and refusals."""

import hashlib
import struct

import numpy as np
import pytest

from tff_fedfish.data.images.image_clients import ImageClients, group_rows


def _clients(**changes):
  values = dict(
    images=np.arange(6 * 2 * 3 * 1, dtype=np.uint8).reshape(6, 2, 3, 1),
    labels=np.array([0, 3, 1, 1, 0, 2], np.int32),
    client_rows={
      b'c': np.array([5]),
      b'a': np.array([1, 3, 4]),
      b'b': np.array([], int),
      b'd': np.array([], int),
    },
    num_classes=4,
    held_out=(b'd', b'c'),
  )
  return ImageClients(**(values | changes))


def test_clients_are_sorted_and_those_without_examples_left_out():
  clients = _clients()
  assert clients.client_ids == [b'a', b'c']
  assert clients.held_out == (b'c',)
  assert list(clients.client_rows) == clients.client_ids
  assert clients.image_shape == (2, 3, 1)


def test_examples():
  clients = _clients()
  rows = clients.sequences(b'a')
  images, labels = rows.images, rows.labels
  assert (images.dtype, labels.dtype) == (np.uint8, np.int32)
  # Six pixels an image: row 1 begins with 6, row 3 with 18, row 4 with 24.
  assert images[:, 0, 0, 0].tolist() == [6, 18, 24]
  assert labels.tolist() == [3, 1, 0]
  assert len(rows) == 3
  # They are copies.
  images[:] = 0
  labels[:] = 0
  assert clients.sequences(b'a').images[0, 0, 0, 0] == 6
  assert clients.sequences(b'a').labels.tolist() == [3, 1, 0]


def test_nobody():
  nobody = _clients(client_rows={}, held_out=())
  assert nobody.client_ids == []


@pytest.mark.parametrize('client_id', [b'b', b'x'])
def test_unknown_client(client_id):
  with pytest.raises(KeyError):
    _clients().sequences(client_id)


def test_fingerprint_by_hand():
  # Length of the id, id, number of examples, labels.
  data = struct.pack('<q1sq3i', 1, b'a', 3, 3, 1, 0)
  data += struct.pack('<q1sqi', 1, b'c', 1, 2)
  # No padding: the sizes above are 8 + 1 + 8 + 12 and 8 + 1 + 8 + 4.
  assert len(data) == 29 + 21
  assert _clients().fingerprint == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
  'changes',
  [
    dict(labels=np.array([0, 3, 1, 2, 0, 2], np.int32)),
    dict(client_rows={b'c': [5], b'a': [1, 3]}, held_out=()),
    dict(client_rows={b'c': [1, 3, 4], b'a': [5]}, held_out=()),
    dict(client_rows={b'c': [5], b'aa': [1, 3, 4]}, held_out=()),
    dict(client_rows={b'c': [5], b'a': [3, 1, 4]}, held_out=()),
  ],
)
def test_other_clients_have_another_fingerprint(changes):
  assert _clients(**changes).fingerprint != _clients().fingerprint


def test_it_is_frozen():
  with pytest.raises(AttributeError):
    _clients().labels = None
  with pytest.raises(TypeError):
    _clients().client_rows[b'x'] = np.array([0])


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    (
      dict(images=np.zeros((6, 2, 3), np.uint8)),
      r'uint8 \[n.*, found uint8 \[6',
    ),
    (dict(images=np.zeros((6, 2, 3, 1))), 'must be uint8 .*, found float64'),
    (dict(labels=np.zeros(5, np.int32)), r'int32 \[6\], found int32 \[5\]'),
    (dict(labels=np.zeros(6)), r'must be int32 \[6\], found float64'),
    (dict(num_classes=3), '`labels` must lie between 0 and 2, found 0 to 3'),
    (dict(client_rows={b'c': [6], b'd': []}), 'between 0 and 5, found 6 to 6'),
    (dict(client_rows={b'c': [-1], b'd': []}), 'between 0 and 5, found -1 to'),
    (
      dict(client_rows={b'c': [2, 1], b'd': [2]}),
      'no row to two clients or twice, but row 2 is given 2 times',
    ),
    (dict(held_out=(b'z',)), "must name clients of `client_rows`, found b'z'"),
  ],
)
def test_what_does_not_fit_together(changes, words):
  with pytest.raises(ValueError, match=words):
    _clients(**changes)


def test_group_rows():
  found = group_rows([b'y', b'x', b'y', b'y'])
  assert {key: rows.tolist() for key, rows in found.items()} == {
    b'y': [0, 2, 3],
    b'x': [1],
  }
