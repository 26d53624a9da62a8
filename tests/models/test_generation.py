"""Choosing tokens by hand, and whole texts against a plain loop."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from models import generation, transformer
from models.transformer_config import TransformerConfig, weight_shapes

_CONFIG = TransformerConfig(
  num_layers=1, width=12, num_heads=2, vocabulary_size=17, sequence_length=7
)
_END, _PADDING = 2, 0
_PROMPT = np.array([2, 9, 4], np.int32)
_NUM_TOKENS = 12  # 3 + 12 tokens: more than the 7 that the model sees.


def _weights(config):
  # Larger than at initialization, so that the likeliest token varies.
  return tuple(
    40 * weight if name.endswith(('kernel', 'embedding')) else weight
    for name, weight in zip(
      weight_shapes(config),
      transformer.initial_weights(config, 6),
      strict=True,
    )
  )


def _sampler(config=_CONFIG, **options):
  options = {
    'num_samples': 2,
    'num_tokens': _NUM_TOKENS,
    'end_of_text_id': _END,
    'forbidden_ids': [_PADDING],
  } | options
  return generation.build_sampler(config, **options)


def _greedy_by_hand(config, weights, end_of_text_id):
  """The likeliest token, again and again, of the last tokens there are."""
  stream = list(_PROMPT)
  while len(stream) < len(_PROMPT) + _NUM_TOKENS:
    window = tf.constant([stream[-config.sequence_length :]])
    logits = transformer.logits(config, weights, window)[0, -1].numpy()
    logits[_PADDING] = -np.inf
    stream.append(int(np.argmax(logits)))
    if stream[-1] == end_of_text_id:
      break
  tokens = stream[len(_PROMPT) :]
  return tokens + [end_of_text_id] * (_NUM_TOKENS - len(tokens))


class TestSampler:
  @pytest.mark.parametrize(
    'variant',
    [
      pytest.param(dict(num_layers=2), marks=pytest.mark.slow),
      dict(num_layers=2, layer_loop='foldl', position_embedding='rotary'),
    ],
  )
  def test_greedy_equals_a_loop_by_hand(self, variant):
    config = dataclasses.replace(_CONFIG, **variant)
    weights = _weights(config)
    expected = _greedy_by_hand(config, weights, _END)
    # The model does not just repeat itself.
    assert len(set(expected)) > 3
    for options in (dict(temperature=0), dict(top_k=1)):
      tokens = _sampler(config, **options)(weights, _PROMPT, 1).numpy()
      np.testing.assert_array_equal(tokens, [expected, expected])

  def test_text_ends_where_its_end_is_drawn(self):
    weights = _weights(_CONFIG)
    endless = _greedy_by_hand(_CONFIG, weights, end_of_text_id=-1)
    # A token of the greedy text, and not its first, is declared its end.
    end = next(token for token in endless if token != endless[0])
    first = endless.index(end)
    sample = _sampler(temperature=0, end_of_text_id=end)
    expected = endless[:first] + [end] * (_NUM_TOKENS - first)
    for row in sample(weights, _PROMPT, 1).numpy():
      assert list(row) == expected

  def test_draws_are_a_function_of_the_seed(self):
    forbidden = [_PADDING, 5]
    sample = _sampler(forbidden_ids=forbidden, temperature=30.0, num_samples=8)
    weights = _weights(_CONFIG)
    tokens = sample(weights, _PROMPT, 1).numpy()
    assert (tokens.dtype, tokens.shape) == (np.int32, (8, _NUM_TOKENS))
    np.testing.assert_array_equal(sample(weights, _PROMPT, 1), tokens)
    assert (sample(weights, _PROMPT, 2).numpy() != tokens).any()
    # Rows are draws of their own, and so are steps.
    assert len({tuple(row) for row in tokens}) == 8
    assert len(set(tokens.flat)) > 8
    assert not set(tokens.flat) & set(forbidden)
    # A row that has ended goes on with its end, whatever the others do.
    lengths = [[*row, _END].index(_END) for row in tokens]
    assert len(set(lengths)) > 2
    for row, length in zip(tokens, lengths, strict=True):
      assert set(row[length:]) <= {_END}
    # One graph serves prompts of other lengths.
    assert sample(weights, _PROMPT[:1], 1).shape == (8, _NUM_TOKENS)

  def test_diverged_weights(self):
    weights = [*_weights(_CONFIG)]
    weights[-1] = weights[-1] * np.nan
    with pytest.raises(
      tf.errors.InvalidArgumentError, match='logits are not finite'
    ):
      _sampler()(tuple(weights), _PROMPT, 1)


class TestChooseTokens:
  # Probabilities 0.1, 0.3, 0 and 0.6.
  _LOGITS = np.log(np.array([1, 3, 0.0, 6], np.float32) + 1e-30)
  _LOGITS[2] = -np.inf

  @pytest.mark.parametrize(
    ('options', 'expected'),
    [
      ({}, [0.1, 0.3, 0, 0.6]),
      # Squares: 1, 9, 36 of 46.
      (dict(temperature=0.5), [1 / 46, 9 / 46, 0, 36 / 46]),
      # 3 and 6 of 9.
      (dict(top_k=2), [0, 1 / 3, 0, 2 / 3]),
      # 9 and 36 of 45.
      (dict(top_k=2, temperature=0.5), [0, 0.2, 0, 0.8]),
      (dict(temperature=0), [0, 0, 0, 1]),
    ],
  )
  def test_frequencies(self, options, expected):
    rows = 5_000
    tokens = generation.choose_tokens(
      tf.tile(tf.constant(self._LOGITS)[tf.newaxis], [rows, 1]),
      tf.constant([4, 5]),
      **options,
    )
    assert tokens.dtype == tf.int32
    found = np.bincount(tokens, minlength=4) / rows
    # Three standard deviations: 3 sqrt(0.25 / 5,000) = 0.021.
    np.testing.assert_allclose(found, expected, atol=0.021)
    # What has no probability is never drawn.
    assert not found[np.array(expected) == 0].any()

  def test_of_equal_ones_the_first(self):
    logits = tf.constant([[2.0, 5, 5, 5]] * 50)
    seed = tf.constant([1, 1])
    greedy = generation.choose_tokens(logits, seed, temperature=0)
    assert set(greedy.numpy()) == {1}
    two = generation.choose_tokens(logits, seed, top_k=2)
    assert set(two.numpy()) == {1, 2}
