"""Settings that contradict each other, each named in one clause."""

import planned_configs
import pytest

from tff_fedfish.config import schema
from tff_fedfish.config.data_settings import PartitionConfig
from tff_fedfish.data.images.partitions import SCHEMES
from tff_fedfish.fields import ConfigError
from tff_fedfish.methods.settings import AlgorithmConfig

_MERGE = dict(partition__scheme='merge', partition__num_clients=4)
_STEPS = dict(
  client_work__num_local_steps=50,
  client_work__num_local_epochs=1,
  client_work__max_sequences_per_client=None,
)
_IMAGES = {
  'data__corpus': 'cifar10',
  'partition__scheme': 'per_client_sampling',
  'partition__num_clients': 100,
  'partition__alpha': 0.1,
}
_ADAMW = dict(client_work__optimizer='adamw')
_COSINE = dict(server__learning_rate_schedule='cosine')
_FOMO = dict(algorithm__name='fed_fomo')
_LOCAL = dict(algorithm__name='local_only')
_PRIVATE = dict(algorithm__name='fed_avg', local_privacy__clip_norm=1.0)

# (shipped config, settings, beginning of each problem, after `config.).
_CASES = [
  # Optimizers.
  (
    'demo',
    dict(client_work__nesterov=True),
    ['client_work.nesterov` is read only with momentum set, found True'],
  ),
  (
    'demo',
    dict(client_work__weight_decay=0.1, server__momentum=0.9),
    [
      "client_work.weight_decay` is read only with optimizer 'adamw', found",
      "server.momentum` is read only with optimizer 'sgd', found 0.9; leave it",
    ],
  ),
  (
    'demo',
    _ADAMW | dict(client_work__momentum=0.9),
    ["client_work.momentum` is read only with optimizer 'sgd', found 0.9"],
  ),
  (
    'demo',
    dict(server__optimizer='adagrad', server__beta_1=0.5),
    ["server.beta_1` is read only with optimizer 'adam', 'adamw' or 'yogi', f"],
  ),
  (
    'demo',
    dict(server__optimizer='yogi', server__bias_correction=True),
    ["server.bias_correction` is read only with optimizer 'adam', found True"],
  ),
  (
    'demo',
    dict(client_work__keeps_optimizer_state=True),
    ['client_work.keeps_optimizer_state` must be False with optimizer'],
  ),
  (
    'demo',
    _COSINE,
    ["server.schedule_rounds` is required with learning_rate_schedule 'cosine"],
  ),
  (
    'demo',
    dict(server__schedule_rounds=3, server__final_fraction=0.1),
    [
      "server.schedule_rounds` is read only with learning_rate_schedule 'cosin",
      'server.final_fraction` is read only with learning_rate_schedule',
    ],
  ),
  *(
    (
      'demo',
      {
        'server__learning_rate_schedule': 'exponential',
        'server__schedule_rounds': 5,
        'server__final_fraction': fraction,
      },
      [
        'server.final_fraction` must be above 0 with learning_rate_schedule '
        f"'exponential', found {fraction}"
      ],
    )
    for fraction in (None, 0.0)
  ),
  # Models.
  (
    'demo',
    dict(model__preset='huge'),
    ['model.preset` must be one of tiny, small, 350m, 1.5b, custom, from_dire'],
  ),
  (
    'demo',
    dict(model__preset='custom', model__num_layers=2, model__width=8),
    [
      "model.num_heads` is required with preset 'custom'",
      "model.vocabulary_size` is required with preset 'custom'",
    ],
  ),
  (
    'demo',
    dict(model__num_heads=3),
    ['model`: Invalid transformer: `width` must be a multiple of `num_heads`'],
  ),
  (
    'mnist_by_writer',
    dict(model__preset='tiny'),
    ["model.preset` must be 'emnist_cnn', 'resnet18', 'linear', 'lenet' or "],
  ),
  (
    'demo',
    dict(model__preset='emnist_cnn'),
    [
      "model.preset` must be 'tiny', 'small', '350m', '1.5b', 'custom' or 'from"
    ],
  ),
  (
    'mnist_by_writer',
    dict(model__width=8, model__compute_dtype='bfloat16'),
    [
      "model.width` is read only with preset 'tiny', 'small', '350m', '1.5b', ",
      "model.compute_dtype` is read only with preset 'tiny', 'small', '350m',",
    ],
  ),
  (
    'demo',
    dict(engine__xla=True, model__num_layers=9),
    ['engine.xla` must be false where the layers are looped over, found true '],
  ),
  (
    'mnist_by_writer',
    dict(engine__xla=True),
    ["engine.xla` is read only with data.corpus 'grouped_text', found True"],
  ),
  # Corpora and partitions.
  (
    'mnist_by_writer',
    dict(data__vocabulary='v', data__sequence_length=8),
    [
      "data.vocabulary` is read only with corpus 'grouped_text', found 'v'",
      "data.sequence_length` is read only with corpus 'grouped_text', found 8",
    ],
  ),
  (
    'mnist_by_writer',
    dict(data__sampling='documents'),
    ["data.sampling` is read only with corpus 'grouped_text', found 'document"],
  ),
  (
    'demo',
    dict(data__vocabulary=None, data__sequence_length=None),
    [
      "data.vocabulary` is required with corpus 'grouped_text'",
      "data.sequence_length` is required with corpus 'grouped_text'",
    ],
  ),
  (
    'demo',
    dict(data__corpus='digits'),
    ['data.corpus` must be one of grouped_text, mnist_by_writer, emnist_by_wr'],
  ),
  (
    'mnist_by_writer',
    dict(data__corpus='cifar10'),
    ["partition.scheme` must be 'per_class_over_clients', "],
  ),
  (
    'mnist_by_writer',
    _IMAGES | dict(data__corpus='mnist_by_writer'),
    ["partition.scheme` must be None with corpus 'mnist_by_writer', found"],
  ),
  (
    'demo',
    dict(partition__scheme='latent_distributions', partition__num_clients=4),
    ["partition.scheme` must be None or 'merge' with corpus 'grouped_text', f"],
  ),
  (
    'mnist_by_writer',
    _MERGE | dict(data__corpus='cifar10'),
    ["partition.scheme` must be 'per_class_over_clients', "],
  ),
  (
    'demo',
    dict(partition__scheme='merge'),
    ["partition.num_clients` is required with scheme 'merge'"],
  ),
  (
    'demo',
    _MERGE | dict(partition__alpha=1, partition__held_out='whole'),
    [
      "partition.held_out` is read only with scheme 'per_class_over_clients',",
      "partition.alpha` is read only with scheme 'per_class_over_clients', ",
    ],
  ),
  (
    'demo',
    dict(partition__num_clients=4),
    ['partition.num_clients` is read only with scheme set, found 4; leave it'],
  ),
  (
    'mnist_by_writer',
    _IMAGES | dict(partition__alpha=None),
    ["partition.alpha` is required with scheme 'per_client_sampling'"],
  ),
  (
    'mnist_by_writer',
    _IMAGES | dict(partition__scheme='dirichlet'),
    ['partition.scheme` must be one of merge, per_class_over_clients, '],
  ),
  (
    'demo',
    dict(client_splits__held_out_fraction=None),
    ['client_splits.held_out_fraction` must be a number with corpus'],
  ),
  (
    'demo',
    dict(client_splits__held_out_fraction=0),
    ['evaluation.num_clients` must be 0 when `config.client_splits.held_out_f'],
  ),
  # Steps and batches.
  (
    'demo',
    dict(client_work__num_local_steps=5, client_work__num_local_epochs=2),
    [
      'client_work.num_local_epochs` must be 1 with num_local_steps, which say',
      'client_work.max_sequences_per_client` must be None with num_local_steps',
    ],
  ),
  (
    'demo',
    _STEPS | dict(data__client_batches='full_only', data__sampling='documents'),
    [
      "data.client_batches` must be 'ragged' with num_local_steps, whose batch",
      "data.sampling` must be 'blocks' with num_local_steps, which goes throug",
    ],
  ),
  (
    'demo',
    _MERGE | dict(data__sampling='documents'),
    ["data.sampling` must be 'blocks' with `config.partition.scheme` 'merge',"],
  ),
  *(
    (
      'demo',
      dict(
        data__client_batches=batches,
        client_work__max_sequences_per_client=cap,
      ),
      [
        'client_work.max_sequences_per_client` must be at least '
        'local_batch_size, 4, with `config.data.client_batches` '
        f'{batches!r}, found {cap}'
      ],
    )
    for batches, cap in (('repeat_full', None), ('full_only', 3))
  ),
  (
    'demo',
    _STEPS | dict(algorithm__name='fed_sgd'),
    ["client_work.num_local_steps` must be None with algorithm.name 'fed_sgd'"],
  ),
  (
    'demo',
    dict(engine__kind='ray', engine__num_workers=9),
    ['engine.num_workers` must be at most the number of parts into which a co'],
  ),
  # Personal models.
  (
    'demo',
    dict(
      client_splits__validation_fraction=0.5, client_splits__test_fraction=0.5
    ),
    ['client_splits.validation_fraction` and `config.client_splits.test_fract'],
  ),
  (
    'demo',
    _LOCAL | dict(data__sampling='documents'),
    ["data.sampling` must be 'blocks' where clients keep rows for validation "],
  ),
  (
    'mnist_personal',
    dict(client_splits__test_fraction=0.1),
    ['client_splits.test_fraction` must be 0 with `config.partition.held_out`'],
  ),
  (
    'demo',
    _LOCAL | dict(client_splits__test_fraction=0.0),
    ['client_splits.test_fraction` must be above 0 with algorithm.name '],
  ),
  (
    'demo',
    _FOMO | dict(client_splits__validation_fraction=0.0),
    ['client_splits.validation_fraction` must be above 0 with algorithm.name '],
  ),
  (
    'demo',
    dict(client_splits__shuffles_targets=True),
    ['client_splits.shuffles_targets` must be False where clients have no tes'],
  ),
  (
    'demo',
    _FOMO
    | _ADAMW
    | dict(
      client_work__keeps_optimizer_state=True,
      evaluation__barrier_every_num_rounds=2,
    ),
    [
      'evaluation.barrier_every_num_rounds` must be 0 with algorithm.name',
      'client_work.keeps_optimizer_state` must be False with algorithm.name',
    ],
  ),
  # Privacy.
  (
    'demo',
    dict(local_privacy__noise_multiplier=1, local_privacy__delta=0.1),
    [
      'local_privacy.noise_multiplier` is read only with clip_norm set, found ',
      'local_privacy.delta` is read only with clip_norm set, found 0.1; leave',
    ],
  ),
  (
    'demo',
    _PRIVATE | dict(local_privacy__noise_multiplier=0.001),
    ['local_privacy.noise_multiplier` must be 0 or at least 0.01, found 0.001'],
  ),
  (
    'demo',
    _PRIVATE | dict(client_work__micro_batch_size=2),
    ['client_work.micro_batch_size` must be None with local_privacy, which ta'],
  ),
  (
    'demo',
    _PRIVATE | dict(client_work__max_sequences_per_client=3),
    ['client_work.max_sequences_per_client` must be at least local_batch_size'],
  ),
  (
    'demo',
    _PRIVATE | dict(data__sampling='documents'),
    ["data.sampling` must be 'blocks' with local_privacy, whose unit is a row"],
  ),
  (
    'demo',
    _PRIVATE | dict(data__client_batches='repeat_full'),
    ["data.client_batches` must be 'ragged' or 'full_only' with local_privacy"],
  ),
  (
    'demo',
    _PRIVATE
    | dict(data__client_batches='full_only', local_privacy__sampling='poisson'),
    ["data.client_batches` must be 'ragged' with local_privacy, whose samplin"],
  ),
  (
    'demo',
    _PRIVATE | _STEPS,
    ['client_work.num_local_steps` must be None with local_privacy, as a batc'],
  ),
  (
    'demo',
    _PRIVATE | dict(algorithm__name='fed_fish'),
    ["algorithm.fisher_estimator` must be 'last_epoch' with local_privacy, as"],
  ),
  (
    'demo',
    _PRIVATE
    | dict(algorithm__name='fed_prox', algorithm__adaptation='fl4health'),
    ["algorithm.adaptation` must be 'none' with local_privacy, as it reads tr"],
  ),
]


@pytest.mark.parametrize(('base', 'settings', 'problems'), _CASES)
def test_contradiction_is_named(base, settings, problems):
  with pytest.raises(ConfigError) as error:
    planned_configs.shipped(base, **settings)
  assert '\n' not in str(error.value)
  found = error.value.problems
  assert len(found) == len(problems), found
  for problem, beginning in zip(found, problems, strict=True):
    assert problem.startswith(f'`config.{beginning}'), problem


@pytest.mark.parametrize(
  ('base', 'settings'),
  [
    ('demo', _PRIVATE | _STEPS | dict(local_privacy__sampling='poisson')),
    (
      'demo',
      _PRIVATE | dict(algorithm__name='fed_fish', algorithm__fisher_power=0.0),
    ),
    ('demo', _FOMO | dict(client_splits__held_out_fraction=0.0)),
    ('demo', _COSINE | dict(server__schedule_rounds=5)),
    ('demo', dict(server__optimizer='yogi', server__beta_1=0)),
    (
      'demo',
      _MERGE | dict(partition__scheme=None, partition__num_clients=None),
    ),
    ('demo', dict(engine__xla=True)),
    ('mnist_by_writer', _IMAGES | dict(data__corpus='cifar100')),
    ('mnist_by_writer', dict(data__corpus='cifar100')),
  ],
)
def test_settings_that_go_together(base, settings):
  planned_configs.shipped(base, **settings)


@pytest.mark.parametrize('name', ['fed_fisher', 'reg_mean', 'ot_fusion'])
def test_one_shot_methods_are_not_private(name):
  settings = {'algorithm__name': name, 'local_privacy__clip_norm': 1.0}
  with pytest.raises(ConfigError) as error:
    planned_configs.shipped('fashion_mnist_one_shot', **settings)
  assert (
    '`config.local_privacy.clip_norm` must be 0.0 with algorithm.name '
    f'{name!r}, found 1.0'
  ) in error.value.problems


def test_the_section_must_be_of_the_class_that_the_method_reads():
  config = planned_configs.shipped('demo')
  values = {
    name: getattr(config, name) for name in type(config).__dataclass_fields__
  }
  values['algorithm'] = AlgorithmConfig(name='fed_fish')
  with pytest.raises(ConfigError, match='must be a FedFishConfig with algorit'):
    schema.TrainConfig(**values)


def test_schemes_declare_the_parameters_that_they_take():
  for name, field in PartitionConfig.__dataclass_fields__.items():
    if name in ('scheme', 'num_clients', 'held_out'):
      continue
    readers = field.metadata['read_with']['scheme']
    for scheme in SCHEMES.values():
      takes = name in scheme.required + scheme.optional
      assert takes == (scheme.function.__name__ in readers)
      if takes:
        assert (name in scheme.required) == field.metadata['required']
