"""Settings that contradict each other, each named in one clause."""

import planned_configs
import pytest

from tff_fedfish.config.data_settings import PartitionConfig
from tff_fedfish.data.images.partitions import SCHEMES
from tff_fedfish.fields import ConfigError
from tff_fedfish.methods.fed_avg import FedAvg

_SHARED = {
  'MERGE': {'partition__scheme': 'merge', 'partition__num_clients': 4},
  'STEPS': {
    'client_work__num_local_steps': 50,
    'client_work__num_local_epochs': 1,
    'client_work__max_sequences_per_client': None,
  },
  'IMAGES': {
    'data__corpus': 'cifar10',
    'partition__scheme': 'per_client_sampling',
    'partition__num_clients': 100,
    'partition__alpha': 0.1,
  },
  'ADAMW': {'client_work__optimizer': 'adamw'},
  'COSINE': {'server__learning_rate_schedule': 'cosine'},
  'FOMO': {'algorithm__name': 'fed_fomo'},
  'LOCAL': {'algorithm__name': 'local_only'},
  'PRIVATE': {'algorithm__name': 'fed_avg', 'local_privacy__clip_norm': 1.0},
}

# A shipped config with settings; below it the beginning of each problem, after
# `config.
_CASES = """
# Optimizers.
demo client_work.nesterov=True
  client_work.nesterov` is read only with momentum set, found True
demo client_work.weight_decay=0.1 server.momentum=0.9
  client_work.weight_decay` is read only with optimizer 'adamw', found
  server.momentum` is read only with optimizer 'sgd', found 0.9; leave it
demo ADAMW client_work.momentum=0.9
  client_work.momentum` is read only with optimizer 'sgd', found 0.9
demo server.optimizer=adagrad server.beta_1=0.5
  server.beta_1` is read only with optimizer 'adam', 'adamw' or 'yogi', f
demo server.optimizer=yogi server.bias_correction=True
  server.bias_correction` is read only with optimizer 'adam', found True
demo client_work.keeps_optimizer_state=True
  client_work.keeps_optimizer_state` must be False with optimizer
demo COSINE
  server.schedule_rounds` is required with learning_rate_schedule 'cosine
demo server.schedule_rounds=3 server.final_fraction=0.1
  server.schedule_rounds` is read only with learning_rate_schedule 'cosin
  server.final_fraction` is read only with learning_rate_schedule
demo server.learning_rate_schedule=exponential server.schedule_rounds=5
  + server.final_fraction=None
  server.final_fraction` must be above 0 with learning_rate_schedule 'exponentia
demo server.learning_rate_schedule=exponential server.schedule_rounds=5
  + server.final_fraction=0.0
  server.final_fraction` must be above 0 with learning_rate_schedule 'exponentia
# Models.
demo model.preset=huge
  model.preset` must be one of tiny, small, 350m, 1.5b, custom, from_dire
demo model.preset=custom model.num_layers=2 model.width=8
  model.num_heads` is required with preset 'custom'
demo model.num_heads=3
  model`: Invalid transformer: `width` must be a multiple of `num_heads`
mnist_by_writer model.preset=tiny
  model.preset` must be 'emnist_cnn', 'resnet18', 'linear', 'lenet' or
demo model.preset=emnist_cnn
  model.preset` must be 'tiny', 'small', '350m', '1.5b', 'custom' or 'from
mnist_by_writer model.width=8 model.compute_dtype=bfloat16
  model.width` is read only with preset 'tiny', 'small', '350m', '1.5b',
  model.compute_dtype` is read only with preset 'tiny', 'small', '350m',
demo engine.xla=True model.num_layers=9
  engine.xla` must be false where the layers are looped over, found true
mnist_by_writer engine.xla=True
  engine.xla` is read only with data.corpus 'grouped_text', found True
# Corpora and partitions.
mnist_by_writer data.vocabulary=v data.sequence_length=8
  data.vocabulary` is read only with corpus 'grouped_text', found 'v'
  data.sequence_length` is read only with corpus 'grouped_text', found 8
mnist_by_writer data.sampling=documents
  data.sampling` is read only with corpus 'grouped_text', found 'document
demo data.vocabulary=None data.sequence_length=None
  data.vocabulary` is required with corpus 'grouped_text'
  data.sequence_length` is required with corpus 'grouped_text'
demo data.corpus=digits
  data.corpus` must be one of grouped_text, mnist_by_writer, emnist_by_wr
mnist_by_writer data.corpus=cifar10
  partition.scheme` must be 'per_class_over_clients',
mnist_by_writer IMAGES data.corpus=mnist_by_writer
  partition.scheme` must be None with corpus 'mnist_by_writer', found
demo MERGE partition.scheme=latent_distributions
  partition.scheme` must be None or 'merge' with corpus 'grouped_text', f
mnist_by_writer MERGE data.corpus=cifar10
  partition.scheme` must be 'per_class_over_clients',
demo partition.scheme=merge
  partition.num_clients` is required with scheme 'merge'
demo MERGE partition.alpha=1 partition.held_out=whole
  partition.held_out` is read only with scheme 'per_class_over_clients',
  partition.alpha` is read only with scheme 'per_class_over_clients',
demo partition.num_clients=4
  partition.num_clients` is read only with scheme set, found 4; leave it
mnist_by_writer IMAGES partition.alpha=None
  partition.alpha` is required with scheme 'per_client_sampling'
mnist_by_writer IMAGES partition.scheme=dirichlet
  partition.scheme` must be one of merge, per_class_over_clients,
demo client_splits.held_out_fraction=None
  client_splits.held_out_fraction` must be a number with corpus
demo client_splits.held_out_fraction=0
  evaluation.num_clients` must be 0 when `config.client_splits.held_out_f
# Steps and batches.
demo client_work.num_local_steps=5 client_work.num_local_epochs=2
  client_work.num_local_epochs` must be 1 with num_local_steps, which say
  client_work.max_sequences_per_client` must be None with num_local_steps
demo STEPS data.client_batches=full_only data.sampling=documents
  data.client_batches` must be 'ragged' with num_local_steps, whose batch
  data.sampling` must be 'blocks' with num_local_steps, which goes throug
demo MERGE data.sampling=documents
  data.sampling` must be 'blocks' with `config.partition.scheme` 'merge',
demo data.client_batches=repeat_full client_work.max_sequences_per_client=None
  client_work.max_sequences_per_client` must be at least local_batch_size, 4, wi
demo data.client_batches=full_only client_work.max_sequences_per_client=3
  client_work.max_sequences_per_client` must be at least local_batch_size, 4, wi
demo STEPS algorithm.name=fed_sgd
  client_work.num_local_steps` must be None with algorithm.name 'fed_sgd'
demo engine.kind=ray engine.num_workers=9
  engine.num_workers` must be at most the number of parts into which a co
demo engine.num_workers=2 engine.gpus_per_worker=0.5 engine.ray_address=auto
  + engine.threads_per_worker=2
  engine.num_workers` is read only with kind 'ray', found 2; leave it out
  engine.threads_per_worker` is read only with kind 'ray', found 2
  engine.gpus_per_worker` is read only with kind 'ray', found 0.5
  engine.ray_address` is read only with kind 'ray', found 'auto'
demo checkpoints.keep_last=0 checkpoints.keep_every_num_rounds=5
  checkpoints.keep_every_num_rounds` is read only with keep_last set, found 5
demo training.patience=2 checkpoints.keep_best=True evaluation.num_clients=0
  + client_splits.validation_clients_fraction=0.5
  client_splits.validation_clients_fraction` is read only with evaluation.num_cl
  training.patience` is read only with evaluation.num_clients set, found 2
  checkpoints.keep_best` is read only with evaluation.num_clients set, found T
demo training.patience=2 evaluation.every_num_rounds=0
  training.patience` is read only with evaluation.every_num_rounds set, found 2
demo LOCAL client_splits.validation_clients_fraction=0.5
  client_splits.validation_clients_fraction` must be 0.0 with algorithm.name 'lo
fashion_mnist_tct training.patience=2
  training.patience` must be None with algorithm.name 'tct', whose last round is
mnist_by_writer evaluation.split_unit=sequences
  evaluation.split_unit` is read only with data.corpus 'grouped_text', found
# Personal models.
demo client_splits.validation_fraction=0.5 client_splits.test_fraction=0.5
  client_splits.validation_fraction` and `config.client_splits.test_fract
demo LOCAL data.sampling=documents
  data.sampling` must be 'blocks' where clients keep rows for validation
mnist_personal client_splits.test_fraction=0.1
  client_splits.test_fraction` must be 0 with `config.partition.held_out`
demo LOCAL client_splits.test_fraction=0.0
  client_splits.test_fraction` must be above 0 with algorithm.name
demo FOMO client_splits.validation_fraction=0.0
  client_splits.validation_fraction` must be above 0 with algorithm.name
demo client_splits.shuffles_targets=True
  client_splits.shuffles_targets` must be False where clients have no tes
demo ADAMW FOMO client_work.keeps_optimizer_state=True
  + evaluation.barrier_every_num_rounds=2
  evaluation.barrier_every_num_rounds` must be 0 with algorithm.name
  client_work.keeps_optimizer_state` must be False with algorithm.name
demo algorithm.name=scaffold aggregation.bits=8
  aggregation.bits` must be 32 with algorithm.name 'scaffold', which declares
demo aggregation.bits=7
  aggregation.bits` must be one of 32, 8, 4, found '7'
# Privacy.
demo local_privacy.noise_multiplier=1 local_privacy.delta=0.1
  local_privacy.noise_multiplier` is read only with clip_norm set, found
  local_privacy.delta` is read only with clip_norm set, found 0.1; leave
demo PRIVATE local_privacy.noise_multiplier=0.001
  local_privacy.noise_multiplier` must be 0 or at least 0.01, found 0.001
demo PRIVATE client_work.micro_batch_size=2
  client_work.micro_batch_size` must be None with local_privacy, which ta
demo PRIVATE client_work.max_sequences_per_client=3
  client_work.max_sequences_per_client` must be at least local_batch_size
demo PRIVATE data.sampling=documents
  data.sampling` must be 'blocks' with local_privacy, whose unit is a row
demo PRIVATE data.client_batches=repeat_full
  data.client_batches` must be 'ragged' or 'full_only' with local_privacy
demo PRIVATE data.client_batches=full_only local_privacy.sampling=poisson
  data.client_batches` must be 'ragged' with local_privacy, whose samplin
demo STEPS PRIVATE
  client_work.num_local_steps` must be None with local_privacy, as a batc
demo PRIVATE algorithm.name=fed_fish
  algorithm.fisher_estimator` must be 'last_epoch' with local_privacy, as
demo PRIVATE algorithm.name=fed_prox algorithm.adaptation=fl4health
  algorithm.adaptation` must be 'none' with local_privacy, as it reads tr
"""


def _settings(words):
  """Returns settings as `planned_configs.shipped` takes them."""
  settings = {}
  for word in words:
    name, is_setting, value = word.partition('=')
    settings |= (
      {name.replace('.', '__'): value} if is_setting else _SHARED[name]
    )
  return settings


def _cases():
  """Returns (config, words of settings, problems) of each case."""
  cases = []
  for line in _CASES.strip().splitlines():
    text = line.strip()
    if line.startswith('  + '):
      cases[-1][1].extend(text[2:].split())
    elif line.startswith('  '):
      cases[-1][2].append(text)
    elif not line.startswith('#'):
      base, *words = text.split()
      cases.append((base, words, []))
  return cases


@pytest.mark.parametrize(('base', 'words', 'problems'), _cases())
def test_contradiction_is_named(base, words, problems):
  with pytest.raises(ConfigError) as error:
    planned_configs.shipped(base, **_settings(words))
  assert '\n' not in str(error.value)
  found = error.value.problems
  assert len(found) == len(problems), found
  for problem, beginning in zip(found, problems, strict=True):
    assert problem.startswith(f'`config.{beginning}'), problem


@pytest.mark.parametrize(
  'case',
  [
    'demo PRIVATE STEPS local_privacy.sampling=poisson',
    'demo PRIVATE algorithm.name=fed_fish algorithm.fisher_power=0.0',
    'demo FOMO client_splits.held_out_fraction=0.0',
    'demo COSINE server.schedule_rounds=5',
    'demo server.optimizer=yogi server.beta_1=0',
    'demo MERGE partition.scheme=None partition.num_clients=None',
    'demo engine.xla=True',
    'mnist_by_writer IMAGES data.corpus=cifar100',
    'mnist_by_writer data.corpus=cifar100',
  ],
)
def test_settings_that_go_together(case):
  base, *words = case.split()
  planned_configs.shipped(base, **_settings(words))


@pytest.mark.parametrize('name', ['fed_fisher', 'reg_mean', 'ot_fusion'])
def test_one_shot_methods_are_not_private(name):
  settings = {'algorithm__name': name, 'local_privacy__clip_norm': 1.0}
  with pytest.raises(ConfigError) as error:
    planned_configs.shipped('fashion_mnist_one_shot', **settings)
  assert (
    '`config.local_privacy.clip_norm` must be 0.0 with algorithm.name '
    f'{name!r}, found 1.0'
  ) in error.value.problems


def test_a_method_bears_its_own_name():
  config = planned_configs.by_hand()
  with pytest.raises(
    ConfigError, match="class of algorithm.name 'fed_avg', fo"
  ):
    config.with_values('algorithm', name='fed_avg')


def test_local_work_of_ones_own_is_not_private(monkeypatch):
  settings = {'algorithm__name': 'fed_avg', 'local_privacy__clip_norm': 1.0}
  planned_configs.shipped('demo', **settings)
  monkeypatch.setattr(FedAvg, 'local_work', lambda self, start, rows: None)
  with pytest.raises(ConfigError, match=r'clip_norm` must be 0\.0 .* no noise'):
    planned_configs.shipped('demo', **settings)


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
