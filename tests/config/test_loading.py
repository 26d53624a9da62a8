"""Config files, overrides and config.json, and what is said when they err."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import pytest

from tff_fedfish.config import files as config_files
from tff_fedfish.config import loading as config_loading
from tff_fedfish.config.loading import (
  differences,
  from_json_dict,
  load_config,
  to_json_dict,
  with_defaults,
)
from tff_fedfish.errors import UserError

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_DEMO = _ROOT / 'configs' / 'demo.py'
_CONFIGS = sorted(
  path for path in (_ROOT / 'configs').glob('*.py') if path.stem != '__init__'
)


@pytest.fixture
def config_file(tmp_path):
  """Writes a config file: demo.py, then `lines` in its `get_config`."""

  def write(*lines, text=None):
    path = tmp_path / 'mine.py'
    if text is None:
      body = ''.join(f'  {line}\n' for line in lines)
      text = (
        f'import runpy\n\n\ndef get_config():\n'
        f'  config = runpy.run_path({str(_DEMO)!r})["get_config"]()\n'
        f'  config.unlock()\n{body}  return config.lock()\n'
      )
    path.write_text(text)
    return path

  return write


def _message(path, *overrides):
  with pytest.raises(UserError) as error:
    load_config(path, overrides)
  assert '\n' not in str(error.value)
  return str(error.value)


@pytest.mark.parametrize('path', _CONFIGS, ids=lambda path: path.stem)
def test_every_config_loads(path):
  config = load_config(path)
  assert from_json_dict(to_json_dict(config), 'config.json') == config
  assert path.read_text().startswith('"""')


@pytest.mark.parametrize(
  ('name', 'settings'),
  [
    # Dhawan et al. (2024), Table 2.
    ('stack_overflow_350m', (16, 1_500, 4, 16, 128, 1e-2, 1e-3)),
    ('c4_1_5b', (8, 10_000, 4, 16, 1_024, 1e-2, 1e-3)),
  ],
)
def test_published_settings(name, settings):
  config = load_config(_ROOT / 'configs' / f'{name}.py')
  assert settings == (
    config.cohorts.cohort_size,
    config.training.num_rounds,
    config.client_work.local_batch_size,
    config.client_work.max_sequences_per_client,
    config.data.sequence_length,
    config.server.learning_rate,
    config.client_work.learning_rate,
  )
  assert config.server.optimizer == 'adam'
  # Not printed: what the paper's code builds on, and what hardly counts.
  assert config.server.epsilon <= 1e-8
  assert config.data.drop_short_block
  assert config.data.client_batches == 'repeat_full'
  assert config.data.sampling == 'documents'


def test_stack_overflow_trains_on_its_whole_part():
  # Others are held out by the corpus's own split, as in the paper.
  config = load_config('stack_overflow_350m')
  assert config.data.directory == 'corpora/stack_overflow/train'
  assert config.client_splits.held_out_fraction == 0


def test_overrides_take_the_type_of_their_setting():
  config = load_config(
    _DEMO,
    [
      '--config.client_work.num_local_epochs=8',
      *('--config.server.learning_rate', '1'),
      '--config.data.drop_short_block=True',
      '--config.data.directory=a=b',
      '--config.model.num_layers=None',
      '--config.model.width=256',
      '--config.algorithm.name=fed_avg',
      '--config.seeds.cohort_seed=7',
    ],
  )
  assert config.client_work.num_local_epochs == 8
  assert config.server.learning_rate == 1.0
  assert config.data.drop_short_block is True
  assert config.data.directory == 'a=b'
  assert config.model.num_layers == 4  # The preset's.
  assert config.model.width == 256
  assert config.algorithm.name == 'fed_avg'
  assert config.seeds.cohort_seed == 7  # In no section of the file.


def test_override_moves_what_the_file_derives_from_it(config_file):
  path = config_file(
    "half = config.training.get_ref('num_rounds') // 2",
    'config.evaluation.every_num_rounds = half',
  )
  config = load_config(path, ['--config.training.num_rounds=30'])
  assert config.evaluation.every_num_rounds == 15


def test_float_for_an_int_in_the_file_can_be_overridden(config_file):
  path = config_file('config.server.learning_rate = 1')
  config = load_config(path, ['--config.server.learning_rate=0.5'])
  assert config.server.learning_rate == 0.5


@pytest.mark.parametrize(
  ('overrides', 'words'),
  [
    (
      ['--config.client_work.num_epochs=3'],
      '`--config.client_work.num_epochs` is unknown; the nearest known one is '
      '`--config.client_work.num_local_epochs`',
    ),
    (
      # The same name in another section is nearer than another name in this.
      ['--config.training.cohort_size=3'],
      '`--config.training.cohort_size` is unknown; the nearest known one is '
      '`--config.cohorts.cohort_size`',
    ),
    (
      ['--config.cohort_size=3'],
      'the nearest known one is `--config.cohorts.cohort_size`',
    ),
    (
      ['--config.cohorts.cohort_size.x=3'],
      '`--config.cohorts.cohort_size.x` is unknown',
    ),
    (['--config.=3'], '`--config.` is unknown'),
    (
      ['--config.model=tiny'],
      '`--config.model` is a section; name one of its settings, such as '
      '`--config.model.preset`',
    ),
    (
      ['--config.training.num_rounds=1e3'],
      "`config.training.num_rounds` must be an int, found '1e3'",
    ),
    (
      ['--config.server.learning_rate=fast'],
      "`config.server.learning_rate` must be a number, found 'fast'",
    ),
    (
      ['--config.data.drop_short_block=1'],
      "`config.data.drop_short_block` must be true or false, found '1'",
    ),
    (
      ['--config.training.num_rounds=None'],
      "`config.training.num_rounds` must be an int, found 'None'",
    ),
    (
      ['--config.training.num_rounds='],
      "`config.training.num_rounds` must be an int, found ''",
    ),
    (
      ['--config.training.num_rounds=3', '--config.training.num_rounds', '4'],
      '`--config.training.num_rounds` is given twice; give it once',
    ),
    (
      ['--config.training.num_rounds'],
      '`--config.training.num_rounds` needs a value, as '
      '--config.training.num_rounds=VALUE',
    ),
    (
      ['--config.training.num_rounds', '--config.seeds.model_seed=1'],
      '`--config.training.num_rounds` needs a value',
    ),
    (['--cofnig.training.num_rounds=3'], "unrecognized argument '--cofnig."),
    (['rounds'], "unrecognized argument 'rounds'"),
  ],
)
def test_bad_override(overrides, words):
  assert words in _message(_DEMO, *overrides)


def test_all_problems_at_once(config_file):
  path = config_file(
    'config.client_work.num_epochs = 1',
    'del config.cohorts.cohort_size',
    'config.cohorts.size = 4',
    'config.severs = dict(a=1)',
    'del config.training',
    'config.model.width = "wide"',
  )
  message = _message(
    path, '--config.seeds.model_sed=1', '--config.server.beta_1=2'
  )
  assert message == (
    f'Invalid config {str(path)!r}: '
    '`--config.seeds.model_sed` is unknown; the nearest known one is '
    '`--config.seeds.model_seed`; '
    '`config.severs` is unknown; the nearest known one is `config.server`; '
    '`config.client_work.num_epochs` is unknown; the nearest known one is '
    '`config.client_work.num_local_epochs`; '
    '`config.server.beta_1` must be finite and at least 0 and below 1, found '
    '2.0; '
    "`config.model.width` must be an int or None, found 'wide'; "
    '`config.cohorts.size` is unknown; the nearest known one is '
    '`config.cohorts.cohort_size`; '
    '`config.cohorts.cohort_size` is required; '
    '`config.training.num_rounds` is required.'
  )


def test_section_that_is_no_section(config_file):
  path = config_file('del config.cohorts', 'config.cohorts = 3')
  assert '`config.cohorts` must be a section of settings, found 3' in _message(
    path
  )
  assert '`config.cohorts` must be a section of settings' in _message(
    path, '--config.cohorts.cohort_size=3'
  )


def test_values_that_no_setting_can_hold(config_file):
  path = config_file(
    'config.algorithm = dict(name=["fed_avg"])',
    'config.seeds = dict(model_seed=1.5)',
    'from ml_collections import config_dict',
    'config.training = dict(num_rounds=config_dict.placeholder(int))',
  )
  message = _message(path)
  assert (
    "`config.algorithm.name` must be a string, found ['fed_avg']" in message
  )
  assert '`config.seeds.model_seed` must be an int, found 1.5' in message
  assert '`config.training.num_rounds` must be an int, found None' in message


def test_missing_file(tmp_path):
  path = tmp_path / 'no.py'
  names = ', '.join(path.stem for path in _CONFIGS)
  assert names.startswith('c4_1_5b, centralized_tiny, debian_ablations_sweep')
  assert _message(path) == (
    '`--config` must name a Python file or a shipped config, but '
    f'{str(path)!r} does not exist. The shipped ones are {names}.'
  )


def test_a_shipped_config_by_its_name(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  shipped = config_loading.load_config('small_c4')
  assert shipped == config_loading.load_config(
    pathlib.Path(__file__).parents[2] / 'configs' / 'small_c4.py'
  )
  # A file of that name wins.
  text = pathlib.Path(config_files.SHIPPED / 'demo.py').read_text('utf-8')
  (tmp_path / 'small_c4').write_text(text, 'utf-8')
  assert config_loading.load_config('small_c4') == config_loading.load_config(
    'demo'
  )


@pytest.mark.parametrize('name', ['__init__', '../configs/demo', 'demo.py', ''])
def test_only_names_of_shipped_configs(name, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert '`--config` must name a Python file or a shipped' in _message(name)


def test_directory(tmp_path):
  assert 'is a directory. The shipped ones are' in _message(tmp_path)


@pytest.mark.parametrize(
  ('text', 'words'),
  [
    ('x = 1\n', 'must define a function `get_config()`, but defines none'),
    ('get_config = 3\n', 'must define a function `get_config()`'),
    (
      'def get_config():\n  return {}\n',
      'must return an ml_collections.ConfigDict, found dict',
    ),
    (
      'def get_config():\n  pass\n',
      'must return an ml_collections.ConfigDict, found NoneType',
    ),
    (
      '\ndef get_config():\n  return 1 / 0\n',
      'must run without errors, but raised ZeroDivisionError: division by '
      'zero in line 3',
    ),
    ('import no_such_module\n', 'raised ModuleNotFoundError'),
    ('x = (\n', 'raised SyntaxError'),
    ('\x00', 'raised'),
    ('raise SystemExit("a\\nb")\n', 'raised SystemExit: a b in line 1'),
    ('def get_config(x):\n  pass\n', 'raised TypeError'),
    (
      'from ml_collections import ConfigDict, config_dict as c\n'
      'def get_config():\n'
      '  return ConfigDict(dict(a=c.required_placeholder(int)))\n',
      'must give every setting a value, but reading them raised '
      'RequiredValueError',
    ),
  ],
)
def test_file_that_cannot_be_used(config_file, text, words):
  path = config_file(text=text)
  message = _message(path)
  assert words in message
  assert repr(str(path)) in message


def test_file_that_is_not_text(tmp_path):
  path = tmp_path / 'binary.py'
  path.write_bytes(b'x = "\xff"\n')
  assert 'raised SyntaxError' in _message(path)


def test_loading_writes_nothing(config_file):
  path = config_file()
  load_config(path)
  assert os.listdir(path.parent) == ['mine.py']


def test_config_json_is_whole_and_returns_the_config():
  config = load_config(_DEMO, ['--config.server.learning_rate=1e-3'])
  values = json.loads(json.dumps(to_json_dict(config)))
  assert values['schema_version'] == 2
  assert values['server'] == dataclasses.asdict(config.server)
  assert (
    values['server'].items()
    > {
      'optimizer': 'adam',
      'learning_rate': 1e-3,
      'beta_1': 0.9,
      'beta_2': 0.999,
      'epsilon': 1e-7,
      'schedule_rounds': None,
    }.items()
  )
  # Resolved: the sizes stand there, not only the preset's name.
  assert values['model']['num_layers'] == 4
  assert values['seeds']['shuffle_seed'] == config.seeds.shuffle_seed
  assert from_json_dict(values, 'config.json') == config


@pytest.mark.parametrize(
  ('version', 'words'),
  [
    (
      3,
      "'run/config.json' must have `schema_version` 2 with this version of "
      'fedfish, found 3. Update fedfish.',
    ),
    (1, 'found 1. Train the run again, or use the version that wrote it.'),
    ('1', "an integer `schema_version` of at least 1, found '1'"),
    (None, 'an integer `schema_version` of at least 1, found None'),
    (0, 'an integer `schema_version` of at least 1, found 0'),
    (True, 'an integer `schema_version` of at least 1, found True'),
  ],
)
def test_config_json_of_another_version(version, words):
  values = {**to_json_dict(load_config(_DEMO)), 'schema_version': version}
  with pytest.raises(UserError) as error:
    from_json_dict(values, 'run/config.json')
  assert words in str(error.value)


def test_config_json_with_a_removed_setting_without_effect():
  config = load_config(_DEMO)
  values = to_json_dict(config)
  values['data'] = {'token_cache_bytes': 0} | values['data']
  assert from_json_dict(values, 'config.json') == config
  assert 'token_cache_bytes' not in with_defaults(values)['data']


@pytest.mark.parametrize('values', [[], 'x', None, {}])
def test_config_json_that_is_none(values):
  with pytest.raises(UserError, match='must be the config.json of a run'):
    from_json_dict(values, 'run/config.json')


def test_damaged_config_json_names_all():
  values = to_json_dict(load_config(_DEMO))
  del values['data']['vocabulary']
  values['data']['vocab'] = 'v'
  values['cohorts'] = []
  with pytest.raises(UserError) as error:
    from_json_dict(values, 'run/config.json')
  assert str(error.value) == (
    "Invalid config 'run/config.json': `config.data.vocab` is unknown; the "
    'nearest known one is `config.data.vocabulary`; '
    "`config.data.vocabulary` is required with corpus 'grouped_text'; "
    '`config.cohorts` must be a section of settings, found [].'
  )


def test_differences():
  first = load_config(_DEMO)
  assert differences(first, load_config(_DEMO)) == []
  second = load_config(
    _DEMO,
    [
      '--config.training.num_rounds=7',
      '--config.algorithm.name=fed_avg',
      '--config.model.preset=small',
    ],
  )
  assert differences(first, second) == [
    'algorithm.name',
    'model.preset',
    'model.num_layers',
    'model.width',
    'model.num_heads',
    'model.vocabulary_size',
    'training.num_rounds',
  ]


def test_spellings_of_one_start(tmp_path):
  (tmp_path / 'link').symlink_to(tmp_path / 'model')
  first, *others = (
    load_config(_DEMO, [f'--config.training.start_from={start}'])
    for start in (
      tmp_path / 'model',
      f'{tmp_path}//model/',
      tmp_path / 'link',
      tmp_path / 'other',
      None,
    )
  )
  found = [differences(first, other) for other in others]
  assert found == [[], [], ['training.start_from'], ['training.start_from']]


def test_answers_without_tensorflow():
  program = (
    'import sys\n'
    'from tff_fedfish.config.loading import load_config\n'
    f'load_config({str(_DEMO)!r})\n'
    "heavy = ('tensorflow', 'tensorflow_federated', 'apache_beam', 'jax')\n"
    'print([name for name in heavy if name in sys.modules])\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', program],
    cwd=_ROOT,
    check=True,
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.stdout == '[]\n'


class TestSettingsOfAnotherMethod:
  def test_in_a_file_they_are_left_out_and_named(self, config_file, capsys):
    path = config_file(
      'config.algorithm = dict(name="fed_avg", relative_floor=0.5,'
      ' fisher_estimator="example_sq")'
    )
    config = config_loading.load_config(path)
    assert (
      'relative_floor' not in config_loading.to_json_dict(config)['algorithm']
    )
    assert capsys.readouterr().err == (
      'fedfish: not read by fed_avg: algorithm.fisher_estimator, '
      'algorithm.relative_floor\n'
    )

  @pytest.mark.parametrize('is_first', [True, False])
  def test_as_a_flag_it_is_an_error_in_any_order(self, config_file, is_first):
    flags = ['--config.algorithm.name=fed_avg']
    flags.insert(0 if is_first else 1, '--config.algorithm.relative_floor=0.5')
    with pytest.raises(UserError) as caught:
      config_loading.load_config(config_file(), flags)
    assert (
      '`--config.algorithm.relative_floor` is not read by fed_avg, but by '
      'fed_fish; leave it out, or set `--config.algorithm.name` to one of these'
    ) in str(caught.value)

  def test_a_flag_for_the_method_of_another_flag(self, config_file):
    # The file is of FedAvg.
    config = config_loading.load_config(
      config_file('config.algorithm = dict(name="fed_avg")'),
      [
        '--config.algorithm.relative_floor=0.5',
        '--config.algorithm.name=fed_fish',
      ],
    )
    assert config.algorithm.relative_floor == 0.5

  def test_an_unknown_method_and_all_else_at_once(self, config_file):
    with pytest.raises(UserError) as caught:
      config_loading.load_config(
        config_file(),
        ['--config.algorithm.name=fedfish', '--config.seeds.model_seed=-1'],
      )
    text = str(caught.value)
    assert '`config.algorithm.name` must be one of fed_avg, fed_fish' in text
    assert "found 'fedfish'" in text
    assert '`config.seeds.model_seed` must be at least 0' in text
    assert '\n' not in text
