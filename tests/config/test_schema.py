"""Facts that follow from a config's settings."""

import planned_configs
import pytest

from models.image_model_config import ImageModelConfig
from models.model_shapes import num_parameters
from models.transformer_config import PRESETS
from tff_fedfish.config import schema
from tff_fedfish.config.load import from_json_dict, load_config, to_json_dict
from tff_fedfish.planning import client_steps

_MERGE = dict(partition__scheme='merge', partition__num_clients=4)
_IMAGES = {
  'data__corpus': 'cifar10',
  'partition__scheme': 'per_client_sampling',
  'partition__num_clients': 100,
  'partition__alpha': 0.1,
}
_FOMO = dict(algorithm__name='fed_fomo')
_LOCAL = dict(algorithm__name='local_only')


@pytest.mark.parametrize('preset', PRESETS)
def test_preset_gives_the_sizes(preset):
  assert schema.ModelConfig(preset=preset).sizes == PRESETS[preset]


def test_given_size_wins_over_the_preset():
  shape = planned_configs.shipped('demo', model__width=256).transformer_config()
  assert (shape.num_layers, shape.width, shape.num_heads) == (4, 256, 4)
  assert (shape.sequence_length, shape.compute_dtype) == (64, 'float32')


def test_shape_of_images():
  # 320 + 18,496 + 1,179,776 as with 62 classes, and 128 * 10 + 10.
  shape = load_config('mnist_by_writer').model_shape()
  assert shape == ImageModelConfig(
    name='emnist_cnn', num_classes=10, image_shape=(28, 28, 1)
  )
  assert num_parameters(shape) == 1_199_882
  shape = planned_configs.shipped(
    'mnist_by_writer', model__preset='resnet18', **_IMAGES
  ).model_shape()
  assert shape.image_shape == (32, 32, 3)
  assert shape.weight_shapes()['head/kernel'] == (512, 10)


def test_facts_of_a_folder_need_no_folder(tmp_path):
  facts = dict(image_height=20, image_width=16, image_channels=3)
  values = to_json_dict(load_config('mnist_by_writer'))
  assert 'resolved' not in values
  values['data'] |= dict(corpus='image_folder', directory=str(tmp_path / 'no'))
  values['client_splits']['held_out_fraction'] = 0.1
  values['resolved'] = facts | dict(classes='a/b/c')
  config = from_json_dict(values, 'config.json')
  shape = config.model_shape()
  assert (shape.image_shape, shape.num_classes) == ((20, 16, 3), 3)
  assert config.resolved.class_names == (b'a', b'b', b'c')
  assert to_json_dict(config) == values


@pytest.mark.parametrize(
  'kind, given, cohort_size, num_parts',
  [
    ('in_process', 0, 20, 1),
    ('in_process', 4, 20, 4),
    ('in_process', 0, None, 1),
    ('ray', 0, 20, 8),
    ('ray', 0, 5, 5),
    # The cohort may have fewer clients.
    ('ray', 0, None, 8),
    ('ray', 16, 20, 16),
    ('ray', 16, 5, 5),
  ],
)
def test_parts_of_a_cohort(kind, given, cohort_size, num_parts):
  config = planned_configs.shipped(
    'demo',
    engine__kind=kind,
    engine__num_partial_sums=given,
    cohorts__cohort_size=cohort_size,
  )
  assert config.num_partial_sums == num_parts


@pytest.mark.parametrize('name', ['demo', 'mnist_personal'])
def test_cohort_of_all_clients_of_a_partition(name):
  # B10: of images as of text.
  settings = _MERGE if name == 'demo' else dict(partition__num_clients=5)
  config = planned_configs.shipped(
    name, cohorts__cohort_size=None, engine__kind='ray', **settings
  )
  num_clients = settings['partition__num_clients']
  assert (config.cohort_size, config.num_partial_sums) == (num_clients,) * 2
  per_client = client_steps.max_tokens_per_client(config)
  assert client_steps.max_tokens_per_round(config) == num_clients * per_client


@pytest.mark.parametrize(
  ('settings', 'rows'),
  [
    # 50 batches of 4.
    (
      dict(
        client_work__num_local_steps=50,
        client_work__max_sequences_per_client=None,
      ),
      (200, 4),
    ),
    (dict(client_work__max_sequences_per_client=None), (None, 4)),
    (dict(client_work__max_sequences_per_client=3), (3, 3)),
  ],
)
def test_sequences_of_a_round(settings, rows):
  work = planned_configs.shipped('demo', **settings).client_work
  assert (work.max_rows, work.max_batch_rows) == rows


@pytest.mark.parametrize(
  ('base', 'settings', 'fractions'),
  [
    # Without personal models all rows are trained on.
    ('demo', {}, (0.0, 0.0)),
    ('demo', dict(client_splits__test_fraction=0.25), (0.0, 0.25)),
    ('demo', _LOCAL, (0.0, 0.2)),
    ('demo', _FOMO, (0.2, 0.2)),
    ('demo', _FOMO | dict(client_splits__validation_fraction=0.1), (0.1, 0.2)),
    # A client is tested on its twin.
    ('mnist_personal', {}, (0.2, 0.0)),
    (
      'mnist_personal',
      _LOCAL | dict(client_splits__validation_fraction=None),
      (0.0, 0.0),
    ),
    ('mnist_personal', dict(partition__held_out='whole'), (0.2, 0.2)),
  ],
)
def test_fractions_of_rows(base, settings, fractions):
  assert planned_configs.shipped(base, **settings).row_fractions == fractions


def test_batches_of_dp_sgd():
  settings = dict(algorithm__name='fed_avg', local_privacy__clip_norm=1.0)
  assert planned_configs.shipped('demo', **settings).drops_last_batch
  drawn = planned_configs.shipped(
    'demo',
    **settings,
    client_work__num_local_steps=5,
    client_work__max_sequences_per_client=None,
    local_privacy__sampling='poisson',
  )
  # No row comes before another in a stream.
  assert not drawn.marks_repeats and not drawn.drops_last_batch


@pytest.mark.parametrize(
  ('settings', 'traffic'),
  [(dict(algorithm__num_downloads=3), (1, 3)), (_LOCAL, (0, 0))],
)
def test_traffic_of_personal_methods(settings, traffic):
  config = planned_configs.shipped('mnist_personal', **settings)
  assert config.method.traffic(config) == traffic


def test_settings_of_a_partition_reach_it():
  config = planned_configs.shipped('mnist_by_writer', **_IMAGES)
  partition = config.partition.build(partition_seed=7)
  assert (partition.scheme, partition.num_clients, partition.seed) == (
    'per_client_sampling',
    100,
    7,
  )
  assert partition.parameters == (('alpha', 0.1),)
  assert schema.PartitionConfig().build(partition_seed=7) is None
