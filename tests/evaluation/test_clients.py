"""The sample of clients, a prefix of one order, and each client's halves."""

import collections.abc

import numpy as np
import pytest

from tff_fedfish.data import cohorts
from tff_fedfish.data.images.image_clients import ImageRows
from tff_fedfish.data.sequences import ClientRows, Sequences, build_sequences
from tff_fedfish.evaluation.clients import choose_clients, halve_client

_FRACTIONS = (0.0, 0.25, 0.5)
# n or M -> ceil(n / 2), floor(n / 4), floor(n / 2).
_SIZES = [(4, 2, 1, 2), (5, 3, 1, 2), (7, 4, 1, 3), (8, 4, 2, 4), (11, 6, 2, 5)]


class _Text(ClientRows):
  """A client with documents of some lengths; all tokens of the i-th are i."""

  def __init__(self, lengths):
    self._lengths = lengths

  def documents(self, client_id):
    return [np.full(length, i) for i, length in enumerate(self._lengths)]

  def build(self, documents):
    return build_sequences(
      documents, sequence_length=5, end_of_text_id=99, padding_id=98
    )

  def sequences(self, client_id):
    return self.build(self.documents(client_id))


class _Numbered(ClientRows):
  """A client whose i-th row begins with token i."""

  def __init__(self, num_rows):
    self._num_rows = num_rows

  def sequences(self, client_id):
    tokens = np.arange(self._num_rows, dtype=np.int32)
    return Sequences(
      tokens[:, None].repeat(3, axis=1), np.full(self._num_rows, 2, np.int32)
    )


class _Images(ClientRows):
  def sequences(self, client_id):
    return ImageRows(
      images=np.zeros((12, 2, 2, 1), np.uint8),
      labels=np.arange(12, dtype=np.int32),
      noise_seeds=np.zeros((12, 2), np.int32),
    )


def _halve(rows, client_id=b'a.org', split_seed=3, **options):
  values = dict(unit='sequences', fractions=_FRACTIONS) | options
  return halve_client(rows, client_id, split_seed=split_seed, **values)


def _halve_documents(lengths, **options):
  return _halve(_Text(lengths), unit='documents', **options)


def _ids(rows):
  """Returns the documents of which there are tokens, in their order."""
  real = [
    row[: count + 1]
    for row, count in zip(rows.tokens, rows.num_targets, strict=True)
  ]
  return [t for t in dict.fromkeys(np.concatenate(real).tolist()) if t < 98]


def _lengths(halves):
  sets = halves.personalization
  return len(halves.evaluation), len(sets[0.25]), len(sets[0.5])


@pytest.mark.parametrize(('count', *'ehq'), _SIZES)
def test_sizes(count, e, h, q):
  halves = _halve(_Numbered(count))
  assert _lengths(halves) == (e, h, q)
  assert 0.0 not in halves.personalization
  # The first quarter of half the data, and nothing that is scored.
  quarter, half = (_ids(halves.personalization[f]) for f in (0.25, 0.5))
  assert half[: len(quarter)] == quarter
  assert sorted(half + _ids(halves.evaluation)) == list(range(count))


@pytest.mark.parametrize(
  ('lengths', 'max_sequences'),
  [([8] * 4, None), ([2, 30, 7, 1, 9], None), ([40] * 9, 6), ([5] * 23, 4)],
)
def test_no_document_lies_in_both_halves(lengths, max_sequences):
  halves = _halve_documents(lengths, max_sequences=max_sequences)
  scored = _ids(halves.evaluation)
  quarter, half = (_ids(halves.personalization[f]) for f in (0.25, 0.5))
  assert scored and not set(scored) & set(half)
  assert half[: len(quarter)] == quarter
  if max_sequences is None:
    num_documents = len(lengths)
    assert len(scored) == -(-num_documents // 2)
    assert len(quarter) == num_documents // 4
    assert len(half) == num_documents // 2


@pytest.mark.parametrize(('cap', *'ehq'), _SIZES)
def test_cap(cap, e, h, q):
  assert _lengths(_halve_documents([40] * 8, max_sequences=cap)) == (e, h, q)
  capped = _halve(_Numbered(20), max_sequences=cap)
  assert _lengths(capped) == (e, h, q)
  # The beginning of one permutation.
  scored = _ids(_halve(_Numbered(20)).evaluation)
  assert _ids(capped.evaluation) == scored[: len(capped.evaluation)]


def test_sequences_beyond_the_cap_are_counted():
  assert _halve(_Numbered(20), max_sequences=8).num_dropped_sequences == 12
  # A half has 4 x 41 tokens in blocks of 6: 28 sequences, of which 4 stay.
  halves = _halve_documents([40] * 8, max_sequences=8)
  assert halves.num_dropped_sequences == 2 * (28 - 4)
  assert halves.num_sequences == 8


def test_too_few():
  assert _halve(_Numbered(3)) is None
  assert _halve_documents([50] * 3) is None
  assert _halve_documents([50] * 4) is not None
  # floor(0.1 x 9) = 0, floor(0.1 x 10) = 1; 4 x 0.2 documents are none.
  assert _halve(_Numbered(9), fractions=(0.0, 0.1)) is None
  split = _halve(_Numbered(10), fractions=(0.0, 0.1))
  assert len(split.personalization[0.1]) == 1
  assert _halve_documents([50] * 4, fractions=(0.2,)) is None
  # Without a target: an empty document is one token, its end.
  assert _halve_documents([0] * 4) is None
  # What training scores may be less than what is required.
  assert (
    len(_halve(_Numbered(9), fractions=(), max_sequences=1).evaluation) == 1
  )


@pytest.mark.parametrize(
  ('rows', 'unit'),
  [(_Numbered(20), 'sequences'), (_Text([4] * 20), 'documents')],
)
def test_is_a_function_of_seed_and_client(rows, unit):
  first = _ids(_halve(rows, unit=unit).evaluation)
  assert first == _ids(_halve(rows, unit=unit).evaluation)
  assert first != _ids(_halve(rows, b'b.org', unit=unit).evaluation)
  assert first != _ids(_halve(rows, split_seed=4, unit=unit).evaluation)
  assert first != sorted(first)


def test_images_are_fine_tuned_under_noise_of_the_client():
  halves = _halve(_Images())
  quarter, half = (halves.personalization[f].noise_seeds for f in (0.25, 0.5))
  assert len({tuple(seed) for seed in half.tolist()}) == 6
  # Both sizes begin alike, so that more data is all that differs.
  np.testing.assert_array_equal(half[:3], quarter)
  again = _halve(_Images()).personalization[0.5].noise_seeds
  np.testing.assert_array_equal(again, half)
  for other in (_halve(_Images(), b'b'), _halve(_Images(), split_seed=4)):
    assert (other.personalization[0.5].noise_seeds != half).any(axis=1).all()
  # Scoring has none; nor has text.
  assert not halves.evaluation.noise_seeds.any()
  assert _halve(_Numbered(12)).personalization[0.5].noise_seeds is None


class _Ids(collections.abc.Sequence):
  """Ten million ids that exist only when asked for."""

  def __init__(self):
    self.num_reads = 0

  def __len__(self):
    return 10**7

  def __getitem__(self, index):
    self.num_reads += 1
    return b'%d' % index


class _Odd(ClientRows):
  """Clients with odd ids have 4 rows, the others 1."""

  def sequences(self, client_id):
    return _Numbered(4 if int(client_id) % 2 else 1).sequences(client_id)


def _choose(client_ids, max_clients):
  return choose_clients(
    client_ids,
    _Odd(),
    split_seed=3,
    split_unit='documents',
    max_clients=max_clients,
  )


def test_only_the_first_of_the_order_are_read():
  ids = _Ids()
  sample = _choose(ids, 5)
  # Only text is halved by documents.
  num_passed = sample.skipped['too_few_sequences']
  # The next one is drawn before it is known that there are enough.
  assert ids.num_reads == 5 + num_passed + 1
  assert sample.skipped['beyond_max_clients'] == 10**7 - 5 - num_passed
  order = cohorts.draw_cohort(
    _Ids(), seed=3, round_num=0, cohort_size=5 + num_passed
  )
  expected = [client_id for client_id in order if int(client_id) % 2]
  assert [client_id for client_id, _ in sample.clients] == expected


def test_none_is_all_that_are_large_enough():
  ids = [b'%d' % i for i in range(10)]
  sample = _choose(ids, None)
  assert sorted(i for i, _ in sample.clients) == [b'1', b'3', b'5', b'7', b'9']
  assert sample.skipped == {'too_few_sequences': 5, 'beyond_max_clients': 0}
