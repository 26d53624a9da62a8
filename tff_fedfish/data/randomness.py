"""Random choices and orders: functions of (purpose, seed, round, client id)."""

import hashlib
import itertools
from collections.abc import Iterable

import numpy as np

_INT32_LIMIT = 2**31
_HASHED_AT_ONCE = 1 << 16


def digest(purpose: str, seed: int, *parts: int | bytes) -> bytes:
  """Returns 32 bytes that depend on the arguments and on nothing else.

  Args:
    purpose: What the randomness is for, such as 'cohort'. Two purposes never
      share a stream, even with equal seeds.
    seed: The purpose's seed.
    *parts: Round numbers (int) and client ids (bytes), in a fixed order.

  Returns:
    A SHA-256 digest. Parts are length-prefixed, so no two argument lists
    collide by concatenation.
  """
  message = b''.join(map(_prefixed, (purpose.encode(), seed, *parts)))
  return hashlib.sha256(message).digest()


def first_words(
  purpose: str, seed: int, client_ids: Iterable[bytes]
) -> np.ndarray:
  """Returns the first 64 bits, read as big-endian, of many digests.

  Entry i is that of `digest(purpose, seed, client_ids[i])`, in a third of the
  time.

  Returns:
    uint64 [num_clients].
  """
  heads = _Heads(_prefixed(purpose.encode()) + _prefixed(seed))
  sha256, left = hashlib.sha256, iter(client_ids)
  found = [np.empty(0, np.uint64)]
  while few := list(itertools.islice(left, _HASHED_AT_ONCE)):
    digests = b''.join([sha256(heads[len(i)] + i).digest() for i in few])
    found.append(np.frombuffer(digests, '>u8')[::4].astype(np.uint64))
  return np.concatenate(found)


class _Heads(dict):
  """Bytes that `digest` hashes before a client's id, by the id's length."""

  def __init__(self, shared: bytes):
    super().__init__()
    self._shared = shared

  def __missing__(self, length: int) -> bytes:
    self[length] = self._shared + b'b' + length.to_bytes(8, 'big')
    return self[length]


def _prefixed(part: int | bytes) -> bytes:
  data = part if isinstance(part, bytes) else str(int(part)).encode()
  kind = b'b' if isinstance(part, bytes) else b'i'
  return kind + len(data).to_bytes(8, 'big') + data


def fraction(purpose: str, seed: int, *parts: int | bytes) -> float:
  """Returns a number in [0, 1) that is a function of the arguments."""
  # 53 bits: what a double holds exactly.
  return (
    int.from_bytes(digest(purpose, seed, *parts)[:8], 'big') >> 11
  ) / 2**53


def seed_of(purpose: str, seed: int, *parts: int | bytes) -> int:
  """Returns a seed in [0, 2^31) that is a function of the arguments."""
  return int.from_bytes(digest(purpose, seed, *parts)[:8], 'big') % _INT32_LIMIT


def noise_seeds(
  shuffle_seed: int, round_num: int, client_id: bytes, num_rows: int
) -> np.ndarray:
  """Returns the seeds that the rows of a client draw from in a round.

  int32 [num_rows, 2], at least 0; those of fewer rows are the first ones.
  """
  noise = generator('client_noise', shuffle_seed, round_num, client_id)
  seeds = noise.randint(_INT32_LIMIT, size=(num_rows, 2), dtype=np.int64)
  return seeds.astype(np.int32)


def generator(
  purpose: str, seed: int, *parts: int | bytes
) -> np.random.RandomState:
  """Returns a generator whose stream is a function of the arguments.

  `RandomState` is used because NumPy promises never to change its streams
  (NEP 19), which `numpy.random.Generator` does not.
  """
  words = np.frombuffer(digest(purpose, seed, *parts), dtype='>u4')
  return np.random.RandomState(words.astype(np.uint32))


def permutation(
  num_rows: int, *, shuffle_seed: int, pass_num: int, client_id: bytes
) -> np.ndarray:
  """Returns the order of one pass over a client's rows.

  int64 [num_rows], a function of the arguments. Passes count from 1; a run that
  makes one pass per round gives the round.
  """
  order = generator('client_shuffle', shuffle_seed, pass_num, client_id)
  return order.permutation(num_rows)


def stream_rows(
  num_rows: int,
  stream_length: int,
  *,
  shuffle_seed: int,
  round_num: int,
  client_id: bytes,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the rows that one round takes from a client's endless stream.

  The stream is pass 1, pass 2 and so on, see `permutation`. Round r takes the
  positions from (r - 1) n to r n - 1, n being `stream_length`, wherever passes
  end.

  Args:
    num_rows: Rows of the client. Without any, a round takes none.
    stream_length: Rows per round, >= 1.
    shuffle_seed: Seed of the order.
    round_num: The round, counted from 1.
    client_id: The client.

  Returns:
    The row numbers, int64 [n], and which of them came before in this round,
    bool [n].
  """
  if not num_rows:
    return np.empty(0, np.int64), np.empty(0, bool)
  start = (round_num - 1) * stream_length
  first_pass = start // num_rows
  last_pass = (start + stream_length - 1) // num_rows
  passes = [
    permutation(
      num_rows,
      shuffle_seed=shuffle_seed,
      pass_num=pass_index + 1,
      client_id=client_id,
    )
    for pass_index in range(first_pass, last_pass + 1)
  ]
  start -= first_pass * num_rows
  rows = np.concatenate(passes)[start : start + stream_length]
  is_repeated = np.ones(stream_length, bool)
  is_repeated[np.unique(rows, return_index=True)[1]] = False
  return rows, is_repeated
