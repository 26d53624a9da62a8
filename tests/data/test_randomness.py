"""Streams are functions of their arguments, and never change."""

import ast
import hashlib

import numpy as np
import source_files
from hypothesis import given, settings
from hypothesis import strategies as st

from tff_fedfish.data import randomness

_parts = st.lists(st.integers(-(2**70), 2**70) | st.binary(max_size=12))


def test_digest_is_the_hash_of_length_prefixed_parts():
  # kind, length in 8 bytes, data; integers in decimal.
  message = (
    b'b\0\0\0\0\0\0\0\x06'
    + b'cohort'
    + b'i\0\0\0\0\0\0\0\x02'
    + b'17'
    + b'i\0\0\0\0\0\0\0\x01'
    + b'3'
    + b'b\0\0\0\0\0\0\0\x02'
    + b'ab'
  )
  expected = hashlib.sha256(message).digest()
  assert randomness.digest('cohort', 17, 3, b'ab') == expected


@given(
  st.lists(st.binary(max_size=90)),
  st.text(max_size=9),
  st.integers(-(2**70), 2**70),
)
def test_first_words_are_those_of_the_digests(ids, purpose, seed):
  found = randomness.first_words(purpose, seed, iter(ids))
  assert found.dtype == np.uint64
  assert found.tolist() == [
    int.from_bytes(randomness.digest(purpose, seed, i)[:8], 'big') for i in ids
  ]


@settings(max_examples=30)
@given(st.integers(0, 2**63), _parts)
def test_fraction_is_the_first_53_bits_of_the_digest(seed, parts):
  value = randomness.fraction('p', seed, *parts)
  bits = ''.join(f'{b:08b}' for b in randomness.digest('p', seed, *parts)[:8])
  assert 0.0 <= value < 1.0
  assert value == int(bits[:53], 2) / 2**53


def test_numpy_integers_count_as_integers():
  assert randomness.digest('p', np.int64(4)) == randomness.digest('p', 4)


def test_generator_is_seeded_with_the_digest_as_words():
  # 32 bytes are eight big-endian words of 32 bits.
  data = randomness.digest('p', 9)
  words = [int.from_bytes(data[i : i + 4], 'big') for i in range(0, 32, 4)]
  expected = np.random.RandomState(words).randint(1000, size=5)
  found = randomness.generator('p', 9).randint(1000, size=5)
  np.testing.assert_array_equal(found, expected)


def test_purposes_keep_their_names():
  # Another name would draw other clients, splits or orders for the same seed.
  found = {
    argument.value
    for tree in source_files.trees(
      'tff_fedfish', 'pipelines', 'models'
    ).values()
    for node in ast.walk(tree)
    if isinstance(node, ast.Call)
    and getattr(node.func, 'attr', getattr(node.func, 'id', ''))
    in ('digest', 'first_words', 'fraction', 'generator', 'seed_of')
    for argument in node.args[:1]
    if isinstance(argument, ast.Constant)
  }
  assert found == {
    'bootstrap',
    'bootstrap_seeds',
    'client_document_halves',
    'client_halves',
    'client_noise',
    'client_shuffle',
    'client_split',
    'client_validation',
    'cohort',
    'delta_rounding',
    'downloads',
    'merge',
    'overlap',
    'partition/fixed_classes',
    'partition/latent_distributions',
    'partition/matching_split',
    'partition/pathological_shards',
    'partition/pathological_shards/rows',
    'partition/per_class_over_clients',
    'private_batches',
    'private_noise',
    'server_solve',
    'server_validation',
    'shuffled_targets',
    'tct_head',
    'tct_mask',
    'vocabulary_documents',
  }
