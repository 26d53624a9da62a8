"""The split of a client's sequences for personalization."""

import numpy as np
import pytest

from tff_fedfish.data.sequences import Sequences
from tff_fedfish.evaluation.client_halves import split_sequences

_FRACTIONS = (0.0, 0.25, 0.5)


def _sequences(count):
  # Row i begins with token i, so rows can be told apart.
  tokens = np.arange(count, dtype=np.int32)[:, None].repeat(3, axis=1)
  return Sequences(tokens, np.full(count, 2, np.int32))


def _split(count, client_id=b'a.org', split_seed=3, **options):
  options = dict(fractions=_FRACTIONS) | options
  return split_sequences(
    _sequences(count), client_id=client_id, split_seed=split_seed, **options
  )


def _ids(sequences):
  return sequences.tokens[:, 0].tolist()


@pytest.mark.parametrize(
  ('count', 'evaluation', 'quarter', 'half'),
  # ceil(n / 2), floor(n / 4), the rest
  [(4, 2, 1, 2), (5, 3, 1, 2), (7, 4, 1, 3), (8, 4, 2, 4), (11, 6, 2, 5)],
)
def test_sizes(count, evaluation, quarter, half):
  split = _split(count)
  assert len(split.evaluation) == evaluation
  assert len(split.personalization[0.25]) == quarter
  assert len(split.personalization[0.5]) == half
  assert 0.0 not in split.personalization


@pytest.mark.parametrize('count', [4, 5, 23])
def test_quarter_is_a_prefix_of_half_and_none_is_scored(count):
  split = _split(count)
  quarter = _ids(split.personalization[0.25])
  half = _ids(split.personalization[0.5])
  assert half[: len(quarter)] == quarter
  assert sorted(half + _ids(split.evaluation)) == list(range(count))


def test_too_few_sequences():
  assert _split(3) is None


def test_is_a_function_of_seed_and_client():
  first = _ids(_split(20).evaluation)
  assert first == _ids(_split(20).evaluation)
  assert first != _ids(_split(20, client_id=b'b.org').evaluation)
  assert first != _ids(_split(20, split_seed=4).evaluation)
  assert first != sorted(first)


def test_cap_keeps_the_beginning_of_the_permutation():
  capped = _split(20, max_sequences=8)
  assert len(capped.evaluation) == 4
  assert len(capped.personalization[0.5]) == 4
  whole = _split(20)
  assert _ids(capped.evaluation) == _ids(whole.evaluation)[:4]


def test_fraction_that_would_be_empty_leaves_the_client_out():
  # floor(0.1 * 9) = 0, floor(0.1 * 10) = 1
  assert _split(9, fractions=(0.0, 0.1)) is None
  split = _split(10, fractions=(0.0, 0.1))
  assert len(split.personalization[0.1]) == 1
