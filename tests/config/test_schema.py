"""A config accepts what is in its bounds and names all that is not."""

import dataclasses
import math
import typing

import hypothesis
import pytest
from hypothesis import strategies as st

from models.transformer_config import PRESETS
from tff_fedfish.config import data_settings as config_data
from tff_fedfish.config import optimizer_settings as config_work
from tff_fedfish.config import privacy_settings as config_privacy
from tff_fedfish.config import schema as config_lib
from tff_fedfish.config_fields import ConfigError
from tff_fedfish.errors import UserError
from tff_fedfish.methods import settings
from tff_fedfish.methods.fed_fish import FedFishConfig
from tff_fedfish.methods.settings import AlgorithmConfig


def _config(**sections):
  values = dict(
    algorithm=FedFishConfig(name='fed_fish'),
    client_work=config_lib.ClientWorkConfig(
      num_local_epochs=2, learning_rate=0.1
    ),
    server=config_lib.ServerConfig(learning_rate=0.01),
    model=config_lib.ModelConfig(preset='tiny'),
    data=config_lib.DataConfig(
      directory='corpus', vocabulary='vocabulary', sequence_length=32
    ),
    cohorts=config_lib.CohortsConfig(cohort_size=3),
    training=config_lib.TrainingConfig(num_rounds=5),
    evaluation=config_lib.EvaluationConfig(every_num_rounds=2, num_clients=4),
    checkpoints=config_lib.CheckpointsConfig(every_num_rounds=2),
  )
  return config_lib.TrainConfig(**{**values, **sections})


def test_defaults_are_the_documented_ones():
  config = _config()
  assert config.algorithm == FedFishConfig(
    name='fed_fish',
    fisher_estimator='extra_pass',
    fisher_reduction='sum',
    fisher_normalization='none',
    client_weighting='num_examples',
    relative_floor=1e-8,
  )
  assert config.client_work.max_delta_norm is None
  assert config.client_work.local_batch_size == 4
  assert config.client_work.max_sequences_per_client == 16
  assert config.server.optimizer == 'adam'
  assert config.server.beta_1 == 0.9
  assert config.server.beta_2 == 0.999
  assert config.server.epsilon == 1e-7
  assert config.client_splits.held_out_fraction == 0.1
  assert config.data.drop_short_block is False
  assert len(set(dataclasses.astuple(config.seeds))) == 6
  assert config.data.corpus == 'grouped_text'
  assert config.partition.scheme is None
  assert config.training.start_from is None


@pytest.mark.parametrize('preset', PRESETS)
def test_preset_gives_the_sizes(preset):
  model = config_lib.ModelConfig(preset=preset)
  assert {name: getattr(model, name) for name in PRESETS[preset]} == PRESETS[
    preset
  ]


def test_given_size_wins_over_the_preset():
  model = config_lib.ModelConfig(preset='tiny', width=256)
  assert (model.num_layers, model.width, model.num_heads) == (4, 256, 4)


def test_custom_preset_needs_every_size():
  with pytest.raises(ConfigError) as error:
    config_lib.ModelConfig(preset='custom', num_layers=2, width=8)
  assert error.value.problems == (
    "`config.model.num_heads` is required with preset 'custom'",
    "`config.model.vocabulary_size` is required with preset 'custom'",
  )
  model = config_lib.ModelConfig(
    preset='custom', num_layers=2, width=8, num_heads=2, vocabulary_size=11
  )
  assert model.vocabulary_size == 11


def test_transformer_has_the_sequence_length_as_positions():
  shape = _config().transformer_config()
  assert shape.sequence_length == 32
  assert shape.width == 128
  assert shape.compute_dtype == 'float32'


@pytest.mark.parametrize(
  ('section_class', 'given', 'problem'),
  [
    (
      FedFishConfig,
      dict(name='fed_fish', relative_floor=-1e-9),
      '`config.algorithm.relative_floor` must be finite and at least 0, '
      'found -1e-09',
    ),
    (
      FedFishConfig,
      dict(name='fed_fish', fisher_power=1.5),
      '`config.algorithm.fisher_power` must be finite and at least 0 and at '
      'most 1, found 1.5',
    ),
    (
      config_lib.ClientWorkConfig,
      dict(num_local_epochs=1, learning_rate=0.1, max_delta_norm=0),
      '`config.client_work.max_delta_norm` must be finite and above 0, found '
      '0.0',
    ),
    (
      config_lib.CohortsConfig,
      dict(cohort_size=0),
      '`config.cohorts.cohort_size` must be at least 1, found 0',
    ),
    (
      config_lib.CohortsConfig,
      dict(cohort_size=True),
      '`config.cohorts.cohort_size` must be an int or None, found True',
    ),
    (
      config_lib.CohortsConfig,
      dict(cohort_size=2.0),
      '`config.cohorts.cohort_size` must be an int or None, found 2.0',
    ),
    (
      config_lib.ServerConfig,
      dict(learning_rate=math.nan),
      '`config.server.learning_rate` must be finite and above 0, found nan',
    ),
    (
      config_lib.ServerConfig,
      dict(learning_rate=math.inf),
      '`config.server.learning_rate` must be finite and above 0, found inf',
    ),
    (
      config_lib.ServerConfig,
      dict(learning_rate=10**400),
      '`config.server.learning_rate` must be finite and above 0, found inf',
    ),
    (
      config_lib.ServerConfig,
      dict(learning_rate=0.1, beta_1=1.0),
      '`config.server.beta_1` must be finite and at least 0 and below 1, '
      'found 1.0',
    ),
    (
      config_lib.ClientSplitsConfig,
      dict(held_out_fraction='0.1'),
      '`config.client_splits.held_out_fraction` must be a number or None, '
      "found '0.1'",
    ),
    (
      config_lib.SeedsConfig,
      dict(model_seed=2**31),
      '`config.seeds.model_seed` must be at least 0 and below 2147483648, '
      'found 2147483648',
    ),
    (
      config_lib.ModelConfig,
      dict(preset='huge'),
      '`config.model.preset` must be one of tiny, small, 350m, 1.5b, custom, '
      'from_directory, emnist_cnn, resnet18, linear, lenet, fed_net_cnn, found '
      "'huge'",
    ),
    (
      config_lib.ModelConfig,
      dict(preset=[]),
      '`config.model.preset` must be a string, found []',
    ),
    (
      config_lib.ModelConfig,
      dict(preset='tiny', width='128'),
      "`config.model.width` must be an int or None, found '128'",
    ),
    (
      config_lib.DataConfig,
      dict(directory='', vocabulary='v', sequence_length=4),
      "`config.data.directory` must be a non-empty string, found ''",
    ),
    (
      config_lib.TrainingConfig,
      dict(num_rounds=1, start_from=''),
      "`config.training.start_from` must be a non-empty string, found ''",
    ),
    (
      config_lib.TrainingConfig,
      dict(num_rounds=1, start_from=4),
      '`config.training.start_from` must be a string or None, found 4',
    ),
    (
      config_lib.DataConfig,
      dict(directory=7, vocabulary='v', sequence_length=4),
      '`config.data.directory` must be a string, found 7',
    ),
    (
      config_lib.DataConfig,
      dict(
        directory='d', vocabulary='v', sequence_length=4, drop_short_block=1
      ),
      '`config.data.drop_short_block` must be true or false, found 1',
    ),
  ],
)
def test_bad_value_is_named(section_class, given, problem):
  with pytest.raises(ConfigError) as error:
    section_class(**given)
  assert error.value.problems == (problem,)
  assert str(error.value) == f'Invalid config: {problem}.'


def test_all_problems_of_a_section_at_once():
  with pytest.raises(UserError) as error:
    config_lib.ClientWorkConfig(
      num_local_epochs=0, local_batch_size=-1, learning_rate=0
    )
  assert [problem.split('`')[1] for problem in error.value.problems] == [
    'config.client_work.num_local_epochs',
    'config.client_work.local_batch_size',
    'config.client_work.learning_rate',
  ]


def test_fed_avg_reads_nothing_of_the_fisher():
  average = AlgorithmConfig(name='fed_avg')
  assert not hasattr(average, 'fisher_estimator')


def test_the_section_must_be_of_the_class_that_the_method_reads():
  with pytest.raises(ConfigError) as caught:
    _config(algorithm=AlgorithmConfig(name='fed_fish'))
  assert str(caught.value) == (
    'Invalid config: `config.algorithm` must be a FedFishConfig with '
    "algorithm.name 'fed_fish', found a AlgorithmConfig."
  )


def test_int_for_a_float_becomes_a_float():
  server = config_lib.ServerConfig(learning_rate=1)
  assert type(server.learning_rate) is float


def test_sections_that_do_not_go_together():
  with pytest.raises(ConfigError) as error:
    _config(
      model=config_lib.ModelConfig(preset='tiny', num_heads=3),
      client_splits=config_lib.ClientSplitsConfig(held_out_fraction=0),
    )
  assert len(error.value.problems) == 2
  assert '`width` must be a multiple of `num_heads` (3)' in str(error.value)
  assert (
    '`config.evaluation.num_clients` must be 0 when '
    '`config.client_splits.held_out_fraction` is 0, found 4'
  ) in str(error.value)


def test_xla_takes_layers_that_are_written_out():
  engine = config_lib.EngineConfig(xla=True)
  looped = config_lib.ModelConfig(preset='tiny', layer_loop='foldl')
  with pytest.raises(
    ConfigError,
    match='`config.engine.xla` must be false where the layers are looped over, '
    'found true with 4 layers; set `--config.model.layer_loop=unrolled` to',
  ):
    _config(engine=engine, model=looped)
  assert _config(engine=engine).engine.xla


@pytest.mark.parametrize(
  'kind, given, cohort_size, num_parts',
  [
    ('in_process', 0, 20, 1),
    ('in_process', 4, 20, 4),
    ('ray', 0, 20, 8),
    ('ray', 0, 5, 5),
    ('ray', 16, 20, 16),
    ('ray', 16, 5, 5),
  ],
)
def test_parts_of_a_cohort(kind, given, cohort_size, num_parts):
  config = _config(
    engine=config_lib.EngineConfig(kind=kind, num_partial_sums=given),
    cohorts=config_lib.CohortsConfig(cohort_size=cohort_size),
  )
  assert config.num_partial_sums == num_parts


def test_more_workers_than_parts():
  with pytest.raises(
    ConfigError,
    match='`config.engine.num_workers` must be at most the number of parts into'
    ' which a cohort is divided, 3, found 4; raise',
  ):
    _config(engine=config_lib.EngineConfig(kind='ray', num_workers=4))


def test_every_setting_is_explained():
  # The text under a field is not kept at run time: read it from the source.
  import ast
  import inspect

  body = [
    node
    for module in (
      config_lib,
      config_data,
      config_work,
      config_privacy,
      settings,
    )
    for node in ast.parse(inspect.getsource(module)).body
  ]
  sections = {
    field.type.__name__ for field in dataclasses.fields(config_lib.TrainConfig)
  }
  classes = [node for node in body if isinstance(node, ast.ClassDef)]
  assert sections <= {node.name for node in classes}
  for node in classes:
    if node.name in sections:
      for field, text in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and field.target.id != 'section':
          assert isinstance(text, ast.Expr), f'{node.name}.{field.target.id}'


@hypothesis.given(
  section=st.sampled_from(dataclasses.fields(config_lib.TrainConfig)),
  data=st.data(),
)
def test_whatever_is_given_is_accepted_or_named(section, data):
  wild = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
  )
  names = [field.name for field in dataclasses.fields(section.type)]
  given = {name: data.draw(wild, label=name) for name in names}
  try:
    built = section.type(**given)
  except ConfigError as error:
    assert '\n' not in str(error)
    assert {problem.split('`')[1] for problem in error.problems} <= {
      f'config.{section.name}.{name}' for name in names
    }
  else:
    for name, annotation in typing.get_type_hints(section.type).items():
      if annotation is float:
        assert math.isfinite(getattr(built, name))
