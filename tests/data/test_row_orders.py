"""The stream of passes, and which of a round's rows came before in it."""

import hypothesis
import hypothesis.strategies as st
import numpy as np

from tff_fedfish.data import randomness


def _pass(num_rows, pass_num):
  return list(
    randomness.permutation(
      num_rows, shuffle_seed=4, pass_num=pass_num, client_id=b'a'
    )
  )


def _round(num_rows, stream_length, round_num):
  return randomness.stream_rows(
    num_rows,
    stream_length,
    shuffle_seed=4,
    round_num=round_num,
    client_id=b'a',
  )


def test_a_round_crosses_the_end_of_a_pass():
  # Passes of 5 rows, 3 a round: round 2 has the positions 3 to 5.
  first, second = _pass(5, 1), _pass(5, 2)
  rows, is_repeated = _round(5, 3, 2)
  assert list(rows) == [*first[3:], second[0]]
  assert list(is_repeated) == [False, False, second[0] in first[3:]]


def test_a_client_without_rows_takes_none():
  rows, is_repeated = _round(0, 3, 2)
  assert len(rows) == len(is_repeated) == 0


@hypothesis.settings(max_examples=30)
@hypothesis.given(
  num_rows=st.integers(1, 12),
  stream_length=st.integers(1, 30),
  num_rounds=st.integers(1, 6),
)
def test_rounds_are_the_stream_cut_into_pieces(
  num_rows, stream_length, num_rounds
):
  rounds = [_round(num_rows, stream_length, r + 1) for r in range(num_rounds)]
  stream = np.concatenate([rows for rows, _ in rounds])
  assert len(stream) == num_rounds * stream_length
  for start in range(0, len(stream), num_rows):
    part = stream[start : start + num_rows]
    # Every pass has all rows once; the last one may be cut off.
    assert len({*part}) == len(part)
    assert list(part) == _pass(num_rows, start // num_rows + 1)[: len(part)]
  for rows, is_repeated in rounds:
    seen = set()
    for row, repeats in zip(rows, is_repeated, strict=True):
      assert repeats == (row in seen)
      seen.add(row)
