"""Peak bytes per process by hand: 180 weights, W = 720.

Batches of R = 2 sequences of 4 tokens, T = 8; width d = 3, 1 head, 5 ids. At
the end of a forward pass there are activations T d (4 * 7 + 24 * 4) = 2976,
scores 4 * 4 R 4^2 = 512 and logits 3 * 4 T V = 480, in all 3968. The largest
tensor has 144 bytes.

Adam's state is W and 2 W, which FedFish's sums, 2 W, lie beside: 3600. Its
client has its weights and a sum of squares: 3600 + 2 W + 3968 = 9008.
"""

import planned_configs
import pytest

from models.image_model_config import ImageModelConfig
from tff_fedfish.planning import client_memory, memory

# With the graph of a layer that is written out.
_PROCESS = 925_000_000 + 10_000_000
_FED_AVG = {'algorithm__name': 'fed_avg'}
_OWN = {'algorithm__name': 'own_methods.noisy_mean'}
_MICRO = {'client_work__micro_batch_size': 1}


@pytest.mark.parametrize(
  ('settings', 'expected'),
  [
    ({}, 9008),
    # One sum: 2880 + 720 + 3968.
    (_FED_AVG, 7568),
    # No moments: 720 + 720 + 4688.
    (_FED_AVG | {'server__optimizer': 'sgd'}, 6128),
    # One.
    (_FED_AVG | {'server__optimizer': 'adagrad'}, 6848),
    # Two moments of the client's own: 2880 + 3 * 720 + 3968.
    (_FED_AVG | {'client_work__optimizer': 'adamw'}, 9008),
    # And FedFish's local steps hold more than its pass.
    ({'client_work__optimizer': 'adamw'}, 9728),
    ({'algorithm__fisher_estimator': 'last_epoch'}, 9008),
    # One row at a time, and a sum: 2880 + 2 * 720 + 1984.
    (_FED_AVG | _MICRO, 6304),
    # And three models of DP-SGD: 2880 + 4 * 720 + 1984.
    (_FED_AVG | {'local_privacy__clip_norm': 1.0}, 7744),
    # Activations T d (4 * 7 + 24 * 2) = 1824 and copies of 108 weights of
    # kernels in 2 bytes: 3600 + 1440 + 216 + 1824 + 512 + 480.
    ({'model__compute_dtype': 'bfloat16'}, 8072),
    # The sum of the parts before, too.
    (_FED_AVG | {'engine__num_partial_sums': 3}, 8288),
    # FedAvg: 2880 + 720 + 3968 and half a sum more, two more models.
    (_OWN, 7568 + 360 + 2 * 720),
    # Old and new state, and a client: 2160 + 2160 + 5408.
    ({'evaluation__barrier_every_num_rounds': 5}, 9728),
  ],
  ids=str,
)
def test_one_process_by_hand(settings, expected):
  config = planned_configs.by_hand(**settings)
  (found,) = memory.process_memory(config)
  assert found.name == 'the process'
  assert found.peak_bytes - _PROCESS == expected
  assert memory.run_bytes(config) == found.peak_bytes


def test_the_largest_parts():
  (found,) = memory.process_memory(planned_configs.by_hand())
  assert list(found.largest_parts.items()) == [
    ('process', _PROCESS),
    ('activations', 2976),
    ('optimizer state', 1440),
  ]


def test_driver_and_worker_by_hand():
  config = planned_configs.by_hand(engine__kind='ray', engine__num_workers=2)
  driver, worker = memory.process_memory(config)
  assert (driver.name, worker.name) == ('the driver', 'each worker')
  # In the merge: state, broadcast, and four sums of 2 W.
  assert driver.peak_bytes - _PROCESS == 2160 + 720 + 4 * 1440
  # Broadcast twice, sums, and a client.
  assert worker.peak_bytes - _PROCESS == 1440 + 1440 + 5408


def test_only_layers_that_are_written_out_make_the_graph_larger():
  # The ninth layer makes it a loop, without 8 times 10 MB.
  (unrolled,) = memory.process_memory(
    planned_configs.by_hand(model__num_layers=8)
  )
  (looped,) = memory.process_memory(
    planned_configs.by_hand(model__num_layers=9)
  )
  assert unrolled.peak_bytes - looped.peak_bytes > 75_000_000


def test_long_sequences_form_logits_in_chunks():
  # 4 bytes of 2 * 1024 tokens and 50,000 ids are 410 MB, of which three are
  # alive together; a chunk has 64 MiB.
  settings = dict(algorithm__name='fed_avg', model__vocabulary_size=50_000)
  (chunked,) = memory.process_memory(
    planned_configs.by_hand(**settings, data__sequence_length=1024)
  )
  assert chunked.largest_parts['logits'] == 3 * 64 * 2**20
  (whole,) = memory.process_memory(planned_configs.by_hand(**settings))
  assert whole.largest_parts['logits'] == 3 * 4 * 8 * 50_000


# The CNN has 1,199,882 weights.
_CNN_BYTES = 4 * 1_199_882


@pytest.mark.parametrize(
  ('settings', 'num_models'),
  [
    # Weights and gradients of a client, the state, and a sum.
    (_FED_AVG | {'server__optimizer': 'sgd'}, 2 + 1 + 1),
    # Half a sum more, and two more models.
    (_OWN | {'server__optimizer': 'sgd'}, 2 + 1 + 1 + 2.5),
    # Adam's state, of FedFish a sum more, and its squares after training.
    ({}, 3 + 3 + 2),
    ({'algorithm__fisher_estimator': 'last_epoch'}, 3 + 3 + 2),
  ],
)
def test_an_image_model_by_hand(settings, num_models):
  config = planned_configs.shipped('mnist_by_writer', **settings)
  (process,) = memory.process_memory(config)
  # Four layers with kernels, all images, and four copies of 10 images' outputs:
  # 26 * 26 * 32 + 24 * 24 * 64 = 58,496 values.
  fixed = memory.PROCESS_BYTES + 4 * memory.UNROLLED_LAYER_BYTES
  fixed += 70_000 * 28 * 28 + 10 * 16 * 58_496
  assert process.peak_bytes == fixed + num_models * _CNN_BYTES
  assert process.largest_parts['images'] == 70_000 * 28 * 28


def test_outputs_of_the_resnet():
  # 4 x 6 pixels, halved, rounded up, at stages 2 to 4: 24, 6, 2, 1.
  # stem 24 * 64 = 1,536; stage 1: 4 * 24 * 64 = 6,144; then 5 outputs each:
  # 5 * 6 * 128 = 3,840, 5 * 2 * 256 = 2,560, 5 * 1 * 512 = 2,560.
  shape = ImageModelConfig(
    name='resnet18', num_classes=2, image_shape=(4, 6, 3)
  )
  num_values = 1_536 + 6_144 + 3_840 + 2_560 + 2_560
  assert shape.num_convolved() == num_values


def test_features_of_rows_by_hand():
  config = planned_configs.shipped('fashion_mnist_tct')
  num_features, _ = config.method.features.sizes(config)
  computed, trained_on, _ = client_memory.stages(config)[-3:]
  # 256 rows twice in float32; six copies of weights for 10 classes.
  assert computed['batch of features'] == 2 * 256 * 4 * num_features
  assert trained_on['regression weights'] == 6 * 4 * 10 * (num_features + 1)
