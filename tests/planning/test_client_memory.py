"""Bytes of a client's work by hand: 180 weights, W = 720.

Batches of R = 2 sequences of 4 tokens, T = 8; width d = 3, 1 head, 5 ids.
Kernels K = 4 * (27 + 9 + 36 + 36) = 432 bytes, embedding 60, the largest
tensor 144.
"""

import planned_configs
import pytest

from models import transformer_config
from models.transformer_config import TransformerConfig
from tff_fedfish.planning import memory

# T d (4 * 7 + 24 * 4), 4 * 4 R 4^2, 3 * 4 T V.
_FORWARD = {'activations': 2976, 'attention scores': 512, 'logits': 480}


def _moments(**settings):
  moments = memory.moments_of_client(planned_configs.by_hand(**settings))
  return {
    moment: {part: size for part, size in parts.items() if size}
    for moment, parts in moments.items()
  }


def test_extra_pass_by_hand():
  held = {'client weights': 720, 'models of the method': 720}
  assert _moments() == {
    # Half of all parts lies idle: 5408 / 2.
    'pass after training, forward': held | _FORWARD | {'allocator': 2704},
    # Layers' kernels 432, the rest 288 and the embedding's second part 60 are
    # 780; stacked, W and half of the largest tensor are 792.
    'pass after training, backward': held
    | {'gradients': 792, 'allocator': 1116},
  }


def test_fed_avg_by_hand():
  held = {'client weights': 720}
  assert _moments(algorithm__name='fed_avg') == {
    'local step, forward': held | _FORWARD | {'allocator': 2344},
    'local step, backward': held | {'gradients': 792, 'allocator': 756},
  }


def test_dp_sgd_takes_one_row_and_three_models():
  # One row of 4 tokens: half of the activations, scores and logits.
  held = {'client weights': 720, 'clipped gradients': 2160}
  forward = {part: size // 2 for part, size in _FORWARD.items()}
  private = {'local_privacy__clip_norm': 1.0}
  assert _moments(algorithm__name='fed_avg', **private) == {
    # Half of 4864 and of 3672.
    'local step, forward': held | forward | {'allocator': 2432},
    'local step, backward': held | {'gradients': 792, 'allocator': 1836},
  }


def test_last_epoch_has_no_delta_yet():
  moments = _moments(algorithm__fisher_estimator='last_epoch')
  assert set(moments) == {'local step, forward', 'local step, backward'}
  for parts in moments.values():
    assert parts['models of the method'] == 720
    assert 'model delta' not in parts


def test_state_of_the_client_optimizer_is_there_in_local_steps():
  # AdamW: two moments, and one with momentum.
  adamw = {'client_work__optimizer': 'adamw'}
  moments = _moments(algorithm__name='fed_avg', **adamw)
  assert moments['local step, forward']['client optimizer state'] == 1440
  moments = _moments(algorithm__name='fed_avg', client_work__momentum=0.5)
  assert moments['local step, backward']['client optimizer state'] == 720
  # A local step may then hold more than the Fisher pass.
  moments = _moments(**adamw)
  assert moments['local step, forward']['client optimizer state'] == 1440
  assert moments['pass after training, forward']['models of the method'] == 720
  for moment, parts in moments.items():
    has_state = 'client optimizer state' in parts
    assert has_state == moment.startswith('local step')


def test_single_sequences_hold_half_of_a_batch_of_two():
  moments = _moments(algorithm__fisher_estimator='example_sq')
  assert len(moments) == 4
  for part, size in _FORWARD.items():
    assert moments['local step, forward'][part] == size
    assert moments['pass after training, forward'][part] == size // 2


def test_micro_batches_of_one_sequence():
  # Half of the batch at a time, and the sums of its gradients.
  micro = {'client_work__micro_batch_size': 1}
  for settings, moment in (
    ({'algorithm__name': 'fed_avg'}, 'local step'),
    ({}, 'pass after training'),
  ):
    moments = _moments(**settings, **micro)
    for part, size in _FORWARD.items():
      assert moments[f'{moment}, forward'][part] == size // 2
    for parts in moments.values():
      assert parts['sums over micro-batches'] == 720
  # A pass over single sequences has no batches to sum over.
  moments = _moments(algorithm__fisher_estimator='example_sq', **micro)
  for moment, parts in moments.items():
    assert ('sums over' in ' '.join(parts)) == moment.startswith('local step')


def test_bfloat16_and_looped_layers_by_hand():
  # Slices of the cast kernels, or a list of them: 2 bytes of each of 108.
  for loop in ('unrolled', 'foldl'):
    parts = _moments(model__compute_dtype='bfloat16', model__layer_loop=loop)[
      'pass after training, forward'
    ]
    assert parts['layer copies'] == 216
    # T d (4 * 7 + 24 * 2).
    assert parts['activations'] == 1824
  parts = _moments(model__layer_loop='foldl')['pass after training, forward']
  assert parts['layer copies'] == 432


def test_large_vocabulary_counts_its_gradient_twice():
  # W = 720 + 35 * 12 = 1140, embedding 480, which is the largest tensor:
  # 1140 + 480 against 1140 + 240.
  parts = _moments(model__vocabulary_size=40)['pass after training, backward']
  assert parts['gradients'] == 1620


def test_large_buffers_go_back_to_the_system(monkeypatch):
  # Of 100 bytes and more: kernels of 108, 144 and 144 of 720 bytes.
  monkeypatch.setattr(memory, '_MAX_HEAP_BUFFER_BYTES', 100)
  parts = _moments(algorithm__name='fed_avg')
  # Activations (8 * 4 * 3 * 4 = 384) and scores (128) too; one copy of the
  # logits is 160. (720 * 324 / 720) / 2 = 162.
  assert parts['local step, forward']['allocator'] == 162
  # And of the gradients, 792 * 0.45: (324 + 356.4) / 2 = 340.2.
  assert parts['local step, backward']['allocator'] == 340
  # A layer has 147 weights, 588 bytes. Of 3 layers' stacked tensors only norms
  # (4 of 36) and two biases (36) are below 100 beside the embeddings (60, 48)
  # and the final norm (24); in pieces, gradients are as before.
  three = _moments(algorithm__name='fed_avg', model__num_layers=3)
  weights = 60 + 48 + 24 + 3 * 588
  stacked = 60 + 48 + 24 + 4 * 36 + 2 * 36
  by_layer = 60 + 48 + 24 + 3 * (588 - 108 - 144 - 144)
  gradients = weights + 432 // 2
  expected = (stacked + gradients * by_layer / weights) / 2
  assert three['local step, backward']['allocator'] == int(expected)


def test_large_models_give_smaller_buffers_back_too(monkeypatch):
  monkeypatch.setattr(memory, 'LARGE_MODEL_HEAP_BUFFER_BYTES', 100)
  monkeypatch.setattr(memory, 'LARGE_MODEL_BYTES', 721)
  small = _moments(algorithm__name='fed_avg')['local step, forward']
  # All of 4688 bytes.
  assert small['allocator'] == 2344
  monkeypatch.setattr(memory, 'LARGE_MODEL_BYTES', 720)
  large = _moments(algorithm__name='fed_avg')['local step, forward']
  # As above: what of the weights is below 100 bytes.
  assert large['allocator'] == 162


def test_what_large_models_give_back_is_as_in_the_engine():
  from tff_fedfish.runtime import freed_memory

  assert memory.LARGE_MODEL_BYTES == freed_memory.MIN_MODEL_BYTES
  assert memory.LARGE_MODEL_HEAP_BUFFER_BYTES == freed_memory.MIN_BUFFER_BYTES


def test_long_sequences_form_logits_in_chunks(monkeypatch):
  shape = TransformerConfig(
    num_layers=1, width=4, num_heads=2, vocabulary_size=10, sequence_length=6
  )
  # 4 bytes for 2 * 6 tokens and 10 ids.
  assert memory.largest_buffers(shape, 2)['logits'] == 480
  # A sequence's 240 bytes are beyond the limit.
  monkeypatch.setattr(transformer_config, 'MAX_LOGITS_BYTES', 200)
  assert memory.largest_buffers(shape, 2)['logits'] == 200


@pytest.mark.parametrize(('block_length', 'expected'), [(6, 36), (4, 16)])
def test_largest_block_of_scores(block_length, expected, monkeypatch):
  monkeypatch.setattr(transformer_config, '_QUERY_BLOCK_LENGTH', block_length)
  shape = TransformerConfig(
    num_layers=1, width=4, num_heads=2, vocabulary_size=10, sequence_length=6
  )
  # 4 bytes for 3 rows and 2 heads; blocks of 6 x 6, or of 4 x 4 (16) and 2 x 6
  # (12).
  buffers = memory.largest_buffers(shape, 3)
  assert buffers['attention scores'] == 4 * 3 * 2 * expected
