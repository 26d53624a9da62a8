"""The split of a client's sequences for personalization."""

import numpy as np
import pytest

from tff_fedfish.data.images.image_clients import ImageRows
from tff_fedfish.data.sequences import Sequences, build_sequences
from tff_fedfish.evaluation.personalization import (
  split_documents,
  split_sequences,
)

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


class TestDocuments:
  def _split(self, lengths, client_id=b'a.org', split_seed=3, **options):
    """Splits documents; all tokens of document i are i."""
    documents = [np.full(length, i) for i, length in enumerate(lengths)]
    options = dict(fractions=_FRACTIONS) | options
    return split_documents(
      documents, _blocks, client_id=client_id, split_seed=split_seed, **options
    )

  @pytest.mark.parametrize(
    ('lengths', 'max_sequences'),
    [([8] * 4, None), ([2, 30, 7, 1, 9], None), ([40] * 9, 6), ([5] * 23, 4)],
  )
  def test_no_document_lies_in_both_halves(self, lengths, max_sequences):
    split = self._split(lengths, max_sequences=max_sequences)
    scored = _documents(split.evaluation)
    quarter, half = (split.personalization[f] for f in (0.25, 0.5))
    assert scored and not set(scored) & set(_documents(half))
    # Prefixes of one order of documents.
    found = _documents(quarter)
    assert _documents(half)[: len(found)] == found
    if max_sequences is None:
      num_documents = len(lengths)
      assert len(scored) == -(-num_documents // 2)
      assert len(found) == num_documents // 4
      assert len(_documents(half)) == num_documents // 2

  def test_a_document_that_sequences_would_cut(self):
    # 12 blocks of one text of 4 documents: half of them are of each document.
    blocks = _blocks([np.full(19, i) for i in range(4)])
    split = split_sequences(
      blocks, client_id=b'a.org', split_seed=3, fractions=_FRACTIONS
    )
    halves = (split.evaluation, split.personalization[0.5])
    assert set.intersection(*(set(_documents(half)) for half in halves))

  @pytest.mark.parametrize(
    ('max_sequences', 'evaluation', 'quarter', 'half'),
    # ceil(M / 2), floor(M / 4), floor(M / 2)
    [(4, 2, 1, 2), (5, 3, 1, 2), (7, 4, 1, 3), (8, 4, 2, 4), (11, 6, 2, 5)],
  )
  def test_cap(self, max_sequences, evaluation, quarter, half):
    split = self._split([40] * 8, max_sequences=max_sequences)
    assert len(split.evaluation) == evaluation
    assert len(split.personalization[0.25]) == quarter
    assert len(split.personalization[0.5]) == half

  def test_too_few(self):
    assert self._split([50] * 3) is None
    assert self._split([50] * 4) is not None
    # 4 x 0.2 documents are none.
    assert self._split([50] * 4, fractions=(0.2,)) is None
    # Without a target: an empty document is one token, its end.
    assert self._split([0] * 4) is None

  def test_is_a_function_of_seed_and_client(self):
    first = _documents(self._split([4] * 20).evaluation)
    assert first == _documents(self._split([4] * 20).evaluation)
    others = (
      self._split([4] * 20, client_id=b'b.org'),
      self._split([4] * 20, split_seed=4),
    )
    assert all(first != _documents(other.evaluation) for other in others)
    assert first != sorted(first)


def _blocks(documents):
  return build_sequences(
    documents, sequence_length=5, end_of_text_id=99, padding_id=98
  )


def _documents(sequences):
  """Returns the documents of which there are tokens, in their order."""
  real = [
    row[: count + 1]
    for row, count in zip(sequences.tokens, sequences.num_targets, strict=True)
  ]
  tokens = np.concatenate(real).tolist()
  return [t for t in dict.fromkeys(tokens) if t < 98]


def test_is_a_function_of_seed_and_client():
  first = _ids(_split(20).evaluation)
  assert first == _ids(_split(20).evaluation)
  assert first != _ids(_split(20, client_id=b'b.org').evaluation)
  assert first != _ids(_split(20, split_seed=4).evaluation)
  assert first != sorted(first)


def _image_split(client_id, split_seed=3):
  rows = ImageRows(
    images=np.zeros((12, 2, 2, 1), np.uint8),
    labels=np.arange(12, dtype=np.int32),
    noise_seeds=np.zeros((12, 2), np.int32),
  )
  return split_sequences(
    rows, client_id=client_id, split_seed=split_seed, fractions=_FRACTIONS
  )


def test_images_are_fine_tuned_under_noise_of_the_client():
  split = _image_split(b'a')
  quarter, half = (split.personalization[f].noise_seeds for f in (0.25, 0.5))
  assert len({tuple(seed) for seed in half.tolist()}) == 6
  # Both sizes begin alike, so that more data is all that differs.
  np.testing.assert_array_equal(half[:3], quarter)
  again = _image_split(b'a').personalization[0.5].noise_seeds
  np.testing.assert_array_equal(again, half)
  for other in (_image_split(b'b'), _image_split(b'a', split_seed=4)):
    assert (other.personalization[0.5].noise_seeds != half).any(axis=1).all()
  # Scoring has none; text neither, nor batches that hold seeds.
  assert not split.evaluation.noise_seeds.any()
  assert _split(12).personalization[0.5].noise_seeds is None


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
