"""The order of a client's rows: passes that are permuted one by one."""

import numpy as np

from tff_fedfish.data import randomness


def permutation(
  num_rows: int, *, shuffle_seed: int, pass_num: int, client_id: bytes
) -> np.ndarray:
  """Returns the order of one pass over a client's rows.

  int64 [num_rows], a function of the arguments. Passes count from 1; a run that
  makes one pass per round gives the round.
  """
  generator = randomness.generator(
    'client_shuffle', shuffle_seed, pass_num, client_id
  )
  return generator.permutation(num_rows)


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
