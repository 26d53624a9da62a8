"""Clients whose rows are divided into train, validation and test parts."""

import contextlib
import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from tff_fedfish.data import randomness
from tff_fedfish.data.sequences import ClientRows, Rows, with_noise


class Parts(NamedTuple):
  """Positions among a client's rows, int64 and ascending, of each part."""

  train: np.ndarray
  validation: np.ndarray
  test: np.ndarray


def divide_rows(
  num_rows: int,
  client_id: bytes,
  *,
  split_seed: int,
  validation_fraction: float,
  test_fraction: float,
) -> Parts:
  """Divides the rows of a client; each row is in exactly one part.

  The rows are permuted. The first floor(test_fraction x num_rows) are for
  testing, the next floor(validation_fraction x num_rows), but at least one, for
  validation, and the others for training. One row that is left is for training.

  Args:
    num_rows: Rows of the client.
    client_id: The client.
    split_seed: The seed of the permutation, together with the client.
    validation_fraction: In [0, 1). 0: no row is for validation.
    test_fraction: In [0, 1), below 1 together with the other one. 0: no row is
      for testing.
  """
  order = randomness.generator(
    'client_validation', split_seed, client_id
  ).permutation(num_rows)
  num_tests = int(test_fraction * num_rows)
  num_left = num_rows - num_tests
  num_validation = 0
  if validation_fraction and num_left >= 2:
    num_validation = max(1, int(validation_fraction * num_rows))
  test, validation, train = np.split(
    order, [num_tests, num_tests + num_validation]
  )
  return Parts(np.sort(train), np.sort(validation), np.sort(test))


class DividedClients(ClientRows):
  """Participating clients by part; other clients have all of their rows.

  The parts' rows are in the order of the corpus. Without any fraction every
  client trains on the rows, and in the order, that it has undivided. Parts of
  text keep their client's count of tokens in a dropped last block.
  """

  def __init__(
    self,
    rows: ClientRows,
    *,
    client_ids: Collection[bytes],
    split_seed: int,
    validation_fraction: float,
    test_fraction: float,
    test_twins: Mapping[bytes, bytes] | None = None,
    target_of: Mapping[bytes, bytes] | None = None,
  ):
    """Reads nothing yet.

    Args:
      rows: Rows of all clients. Text is divided as blocks: with a fraction
        above 0 it must not be sampled by documents.
      client_ids: The clients to divide.
      split_seed: See `divide_rows`.
      validation_fraction: See `divide_rows`.
      test_fraction: See `divide_rows`. It is read as 0 with `test_twins`.
      test_twins: Client -> the client all of whose rows it is tested on. A
        client that is missing, or whose twin is not in the corpus, has no test
        rows. None: each has its own.
      target_of: Client -> the client whose validation and test rows it is
        given, see `shuffled_targets`. A client that is missing has its own.
    """
    test_fraction = 0.0 if test_twins is not None else test_fraction
    self._is_whole = not validation_fraction and not test_fraction
    self._client_ids = frozenset(client_ids)
    self._target_of = target_of or {}
    self._rows = rows
    self._test_twins = test_twins
    self._options = dict(
      split_seed=split_seed,
      validation_fraction=validation_fraction,
      test_fraction=test_fraction,
    )

  def sequences(self, client_id: bytes) -> Rows:
    """Returns the rows that a client trains on; see `ClientRows`."""
    if self._is_undivided(client_id):
      return self._rows.sequences(client_id)
    return self._part(client_id, 'train')

  def validation_sequences(self, client_id: bytes) -> Rows:
    """Returns the validation rows of a client's target.

    Raises:
      KeyError: If the client is not divided.
    """
    return self._part(self._target(client_id), 'validation')

  def test_sequences(self, client_id: bytes) -> Rows:
    """Returns the test rows of a client's target.

    Raises:
      KeyError: If the client is not divided.
    """
    target = self._target(client_id)
    if self._test_twins is not None and target in self._test_twins:
      # A corpus of images leaves out clients without any.
      with contextlib.suppress(KeyError):
        return self._rows.sequences(self._test_twins[target])
    return self._part(target, 'test')

  def training_sequences(
    self,
    client_id: bytes,
    *,
    shuffle_seed: int,
    round_num: int,
    **limits: int | bool | None,
  ) -> Rows:
    """Returns the rows that a client trains on in one round.

    Images have noise seeds, as undivided ones do. See `ClientRows`.
    """
    purposes = dict(shuffle_seed=shuffle_seed, round_num=round_num)
    if self._is_undivided(client_id):
      return self._rows.training_sequences(client_id, **purposes, **limits)
    found = super().training_sequences(client_id, **purposes, **limits)
    if found.noise_seeds is None:
      return found
    return with_noise(found, shuffle_seed, round_num, client_id)

  def _is_undivided(self, client_id: bytes) -> bool:
    return self._is_whole or client_id not in self._client_ids

  def _target(self, client_id: bytes) -> bytes:
    if client_id not in self._client_ids:
      raise KeyError(client_id)
    return self._target_of.get(client_id, client_id)

  def _part(self, client_id: bytes, name: str) -> Rows:
    rows = self._rows._selectable(client_id)
    return rows.select(getattr(self._parts(client_id, rows), name))

  def _parts(self, client_id: bytes, rows: Rows) -> Parts:
    return divide_rows(len(rows), client_id, **self._options)

  def _selectable(self, client_id: bytes) -> Rows:
    rows = self._rows._selectable(client_id)
    if self._is_undivided(client_id):
      return rows
    return _TrainRows(whole=rows, positions=self._parts(client_id, rows).train)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _TrainRows(Rows):
  """A part of a client's rows; only chosen ones of it are selected."""

  whole: Rows
  positions: np.ndarray

  def __len__(self) -> int:
    return len(self.positions)

  @property
  def num_tokens(self) -> int:
    return self.whole.num_tokens_at(self.positions)

  def select(self, index: slice | np.ndarray) -> Any:
    return self.whole.select(self.positions[index])


def shuffled_targets(
  client_ids: Collection[bytes], *, split_seed: int
) -> dict[bytes, bytes]:
  """Permutes the validation and test rows among clients (Zhang et al., 2021).

  FedFomo calls these out-of-distribution targets. It is a plain permutation, as
  in the paper: a client may keep its own rows.

  Args:
    client_ids: The clients, in any order.
    split_seed: Seed of the permutation, together with the clients.

  Returns:
    Client -> the client whose rows it is given, `target_of` of
    `DividedClients`. Every client gives its rows once.
  """
  ordered = sorted(client_ids)
  generator = randomness.generator('shuffled_targets', split_seed)
  order = generator.permutation(len(ordered))
  return {i: ordered[j] for i, j in zip(ordered, order, strict=True)}
