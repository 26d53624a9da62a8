"""Every random choice is a function of (purpose, seed, round, client id)."""

import hashlib

import numpy as np

_INT32_LIMIT = 2**31


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
  hasher = hashlib.sha256()
  for part in (purpose.encode(), seed, *parts):
    data = part if isinstance(part, bytes) else str(int(part)).encode()
    kind = b'b' if isinstance(part, bytes) else b'i'
    hasher.update(kind + len(data).to_bytes(8, 'big') + data)
  return hasher.digest()


def fraction(purpose: str, seed: int, *parts: int | bytes) -> float:
  """Returns a number in [0, 1) that is a function of the arguments."""
  # 53 bits: what a double holds exactly.
  return (
    int.from_bytes(digest(purpose, seed, *parts)[:8], 'big') >> 11
  ) / 2**53


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
