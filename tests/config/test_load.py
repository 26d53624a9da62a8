"""Config files, overrides, config.json, and what is refused."""

import dataclasses
import json
import os
import pathlib

import pytest

from tff_fedfish.cli.main import main
from tff_fedfish.config import describe, given
from tff_fedfish.config.given import base
from tff_fedfish.config.load import (
  differences,
  from_json_dict,
  load_config,
  to_json_dict,
  write_config,
)
from tff_fedfish.config.names import MAY_MOVE
from tff_fedfish.errors import UserError

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SHIPPED = (
  *('c4_1_5b', 'debian_sweep', 'demo', 'diloco_350m', 'diloco_tiny'),
  *('fashion_mnist_one_shot', 'fashion_mnist_tct', 'fed_fish_mix'),
  *('mnist_by_writer', 'mnist_personal', 'small_c4', 'stack_overflow_350m'),
)


@pytest.fixture
def config_file(tmp_path):
  """Writes a config file: demo with other lines in its `get_config`."""

  def write(*lines, text=None):
    path = tmp_path / 'mine.py'
    body = ''.join(f'  {line}\n' for line in lines)
    path.write_text(
      text
      if text is not None
      else 'from tff_fedfish.config.given import base\n'
      f'def get_config():\n  config = base("demo")\n{body}  return config\n'
    )
    return path

  return write


def _message(path, *overrides):
  with pytest.raises(UserError) as error:
    load_config(path, overrides)
  assert '\n' not in str(error.value)
  return str(error.value)


class TestShippedConfigs:
  def test_names(self, capsys):
    assert tuple(given.shipped_configs()) == _SHIPPED
    assert main(['configs']) == 0
    assert 'small_c4' in capsys.readouterr().out

  @pytest.mark.parametrize('name', _SHIPPED)
  def test_every_one_loads_anywhere(self, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = load_config(name)
    assert from_json_dict(to_json_dict(config), 'config.json') == config
    # Nothing is missing but the corpus, and vocabularies that do not ship.
    assert main(['train', '--config', name, '--dry_run']) == 2
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if line.startswith('fedfish: error')]
    vocabulary = config.data.vocabulary
    is_complete = vocabulary in (None, 'demo')
    assert len(errors) == (1 if is_complete else 2), errors
    assert config.data.directory in errors[0]
    if not is_complete:
      assert vocabulary in errors[1]
    assert not list(tmp_path.iterdir())

  @pytest.mark.parametrize(
    ('name', 'settings'),
    [
      # Dhawan et al. (2024), Table 2; of EMNIST the cohort is halved.
      ('stack_overflow_350m', (16, 1_500, 4, 16, 128, 1e-2, 1e-3)),
      ('c4_1_5b', (8, 10_000, 4, 16, 1_024, 1e-2, 1e-3)),
      ('mnist_by_writer', (32, 200, 10, 100, None, 1e-3, 1e-3)),
    ],
  )
  def test_published_settings(self, name, settings):
    config = load_config(name)
    assert settings == (
      config.cohorts.cohort_size,
      config.training.num_rounds,
      config.client_work.local_batch_size,
      config.client_work.max_sequences_per_client,
      config.data.sequence_length,
      config.server.learning_rate,
      config.client_work.learning_rate,
    )

  def test_a_file_of_that_name_wins(self, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'small_c4').write_bytes(
      (given.SHIPPED / 'demo.py').read_bytes()
    )
    assert load_config('small_c4') == load_config('demo')

  def test_base_with_changes(self):
    changed = base('demo', {'training.num_rounds': 3, 'seeds.model_seed': 9})
    assert changed['training'] == {'num_rounds': 3}
    assert changed['seeds'] == {'model_seed': 9}
    assert changed['model'] == base('demo')['model']


def test_overrides_take_the_type_of_their_setting():
  config = load_config(
    'demo',
    [
      '--config.client_work.num_local_epochs=8',
      *('--config.server.learning_rate', '1'),
      '--config.data.drop_short_block=True',
      '--config.data.directory=a=b',
      '--config.model.num_layers=None',
      '--config.model.width=256',
      '--config.algorithm.name=fed_avg',
      '--config.seeds.cohort_seed=7',
      # A choice that may be None.
      '--config.partition.scheme=none',
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
  assert config.partition.scheme is None


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
      'the nearest known one is `--config.cohorts.cohort_size`',
    ),
    (['--config.=3'], '`--config.` is unknown'),
    (
      ['--config.model=tiny'],
      'is unknown; the nearest known one is `--config.',
    ),
    (['--config.resolved.classes=a/b'], '.resolved.classes` is unknown'),
    (['--config.data.drop_short_block=1'], "must be true or false, found '1'"),
    (['--config.evaluation.split_unit=None'], 'must be one of documents, seq'),
    (
      ['--config.training.num_rounds=3', '--config.training.num_rounds', '4'],
      '`--config.training.num_rounds` is given twice; give it once',
    ),
    (
      ['--config.training.num_rounds', '--config.seeds.model_seed=1'],
      '`--config.training.num_rounds` needs a value, as '
      '--config.training.num_rounds=VALUE',
    ),
    (['--cofnig.training.num_rounds=3'], "unrecognized argument '--cofnig."),
  ],
)
def test_bad_override(overrides, words):
  assert words in _message('demo', *overrides)


def test_all_problems_at_once(config_file):
  path = config_file(
    'config["client_work"]["num_epochs"] = 1',
    'config["cohorts"] = dict(size=4)',
    'config["severs"] = dict(a=1)',
    'del config["training"]',
    'config["model"]["width"] = "wide"',
    'config["seeds"] = 3',
  )
  message = _message(
    path, '--config.seeds.model_sed=1', '--config.server.beta_1=2'
  )
  assert message.startswith(f'Invalid config {str(path)!r}: ')
  problems = message.split(': ', 1)[1].split('; ')
  expected = [
    '`--config.seeds.model_sed` is unknown',
    'the nearest known one is `--config.seeds.model_seed`',
    '`config.seeds` must be a section of settings, found 3',
    '`config.client_work.num_epochs` is unknown',
    'the nearest known one is `config.client_work.num_local_epochs`',
    '`config.cohorts.size` is unknown',
    'the nearest known one is `config.cohorts.cohort_size`',
    '`config.severs.a` is unknown',
    'the nearest known one is `config.',
    '`config.server.beta_1` must be finite and at least 0 and below 1, found',
    "`config.model.width` must be an int or None, found 'wide'",
    '`config.cohorts.cohort_size` is required',
    '`config.training.num_rounds` is required.',
  ]
  assert len(problems) == len(expected)
  for problem, beginning in zip(problems, expected, strict=True):
    assert problem.startswith(beginning)


@pytest.mark.parametrize(
  'typed, near', [('my_swep', 'my_sweep'), ('demo.py', 'demo')]
)
def test_the_nearest_config_is_named(typed, near, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  pathlib.Path('my_sweep.py').touch()
  assert f'(did you mean {near!r}?)' in _message(typed)


@pytest.mark.parametrize(
  'name', ['no.py', '__init__', '../configs/demo', 'demo.py', '', '.']
)
def test_only_files_and_names_of_shipped_configs(name, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  problem = 'is a directory' if name in ('', '.') else 'does not exist'
  message = _message(name)
  assert '`--config` must name a file or a shipped config' in message
  assert problem in message
  assert f'. The shipped ones are {", ".join(_SHIPPED)}.' in message


def test_a_file_is_named_without_py(config_file, monkeypatch):
  path = config_file('config["seeds"] = dict(model_seed=7)')
  monkeypatch.chdir(path.parent)
  assert load_config('mine').seeds.model_seed == 7
  # Of a shipped config only the file itself is taken in its place.
  path.rename('demo.py')
  assert load_config('demo').seeds.model_seed == 1
  assert load_config('demo.py').seeds.model_seed == 7


@pytest.mark.parametrize(
  ('text', 'words'),
  [
    ('x = 1\n', 'must define a function `get_config()`, but defines none'),
    (
      'def get_config():\n  pass\n',
      'must return a dictionary, found NoneType. Correct the file',
    ),
    (
      '\ndef get_config():\n  return 1 / 0\n',
      'must run without errors, but raised ZeroDivisionError: division by '
      'zero in line 3',
    ),
    ('import no_such_module\n', 'raised ModuleNotFoundError'),
    ('x = (\n', 'raised SyntaxError'),
    ('raise SystemExit("a\\nb")\n', 'raised SystemExit: a b in line 1'),
    (
      'from ml_collections import ConfigDict, config_dict as c\n'
      'def get_config():\n'
      '  return ConfigDict(dict(a=c.required_placeholder(int)))\n',
      'must run without errors, but raised RequiredValueError',
    ),
  ],
)
def test_file_that_cannot_be_used(config_file, text, words):
  path = config_file(text=text)
  message = _message(path)
  assert words in message
  assert repr(str(path)) in message


def test_a_config_dict_is_accepted(config_file):
  path = config_file(
    'from ml_collections import ConfigDict',
    'config = ConfigDict(config).lock()',
  )
  assert load_config(path) == load_config('demo')
  assert os.listdir(path.parent) == ['mine.py']


class TestConfigJson:
  def test_is_whole_and_returns_the_config(self):
    config = load_config('demo', ['--config.server.learning_rate=1e-3'])
    values = json.loads(json.dumps(to_json_dict(config)))
    assert values['schema_version'] == given.SCHEMA_VERSION
    assert values['server'] == dataclasses.asdict(config.server)
    # Resolved: the sizes stand there, not only the preset's name.
    assert values['model']['num_layers'] == 4
    assert values['seeds']['shuffle_seed'] == config.seeds.shuffle_seed
    assert from_json_dict(values, 'config.json') == config

  def test_is_a_config_file(self, tmp_path):
    config = load_config('demo', ['--config.seeds.model_seed=7'])
    path = tmp_path / 'config.json'
    path.write_text(json.dumps(to_json_dict(config)))
    assert load_config(path) == config
    other = load_config(path, ['--config.training.num_rounds=31'])
    assert differences(config, other) == ['training.num_rounds']
    # As from the Python file: the sizes are the other preset's.
    preset = ['--config.model.preset=small']
    assert load_config(path, preset).model == load_config('demo', preset).model
    # A copy may be edited.
    values = to_json_dict(config)
    values['model']['num_layers'] = 8
    path.write_text(json.dumps(values))
    assert load_config(path).model.num_layers == 8
    path.write_text('{')
    assert 'must hold the config of a run, but cannot be read' in _message(path)

  @pytest.mark.parametrize(
    ('values', 'words'),
    [
      (
        {'schema_version': 4},
        "'run/config.json' must be the config.json of a run with "
        '`schema_version` 3, found 4. Update fedfish.',
      ),
      (
        {'schema_version': 2},
        'found 2. Train the run again, or use the version that wrote it.',
      ),
      ({'schema_version': '1'}, "3, found '1'. Name another run."),
      (None, 'must be the config.json of a run'),
    ],
  )
  def test_of_another_version(self, values, words):
    with pytest.raises(UserError) as error:
      from_json_dict(values, 'run/config.json')
    assert words in str(error.value)

  def test_damaged(self):
    values = to_json_dict(load_config('demo'))
    del values['data']['directory']
    values['data']['vocab'] = 'v'
    values['cohorts'] = []
    with pytest.raises(UserError) as error:
      from_json_dict(values, 'run/config.json')
    assert str(error.value) == (
      "Invalid config 'run/config.json': `config.cohorts` must be a section of "
      'settings, found []; `config.data.vocab` is unknown; the nearest known '
      'one is `config.data.vocabulary`; `config.data.directory` is required; '
      '`config.cohorts.cohort_size` is required.'
    )

  @pytest.mark.parametrize(
    ('facts', 'words'),
    [
      ({'image_height': -1}, '`config.resolved.image_height` must be'),
      ([], '`config.resolved` must hold facts of a run'),
      # Classes without the size of the images.
      (
        {'classes': 'a/b'},
        '`config.resolved` must hold facts of a run',
      ),
    ],
  )
  def test_damaged_facts(self, facts, words):
    values = to_json_dict(load_config('demo')) | {'resolved': facts}
    with pytest.raises(UserError, match=words):
      from_json_dict(values, 'run/config.json')


def test_differences():
  first = load_config('demo')
  assert differences(first, load_config('demo')) == []
  second = load_config(
    'demo',
    [
      '--config.training.num_rounds=7',
      '--config.training.max_non_finite_rounds=7',
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
    'training.num_rounds',
  ]


class TestVocabularySize:
  @pytest.fixture
  def vocabulary(self, tmp_path):
    path = tmp_path / 'three.txt'
    path.write_text('[PAD]\n[UNK]\n[END]\n')
    return f'--config.data.vocabulary={path}'

  @pytest.mark.parametrize(
    'overrides, size',
    [
      ([], 3),
      (['preset=small'], 3),
      (['vocabulary_size=5'], 5),
      (['preset=custom', 'num_layers=1', 'width=8', 'num_heads=1'], 3),
    ],
  )
  def test_is_the_vocabularys(self, vocabulary, overrides, size):
    overrides = [f'--config.model.{text}' for text in overrides]
    config = load_config('demo', [vocabulary, *overrides])
    assert config.model.vocabulary_size == size
    assert to_json_dict(config)['model']['vocabulary_size'] == size

  def test_is_the_presets_before_there_is_a_vocabulary(self, tmp_path):
    nowhere = f'--config.data.vocabulary={tmp_path}/nowhere'
    config = load_config('small_c4', [nowhere])
    assert config.model.vocabulary_size == 8192
    custom = [f'--config.model.{n}=1' for n in ('num_layers', 'num_heads')]
    custom += ['--config.model.preset=custom', '--config.model.width=8']
    with pytest.raises(UserError, match="nowhere' does not exist. Name one"):
      load_config('small_c4', [nowhere, *custom])

  def test_a_run_keeps_its_own(self, vocabulary, tmp_path):
    path = tmp_path / 'config.json'
    write_config(path, load_config('demo', ['--config.training.num_rounds=3']))
    for config in ('demo', path):
      config = load_config(config, [vocabulary], workdir=tmp_path)
      assert config.model.vocabulary_size == 2048


class TestContinuedRun:
  """Settings of a run that was started before."""

  @pytest.fixture
  def start(self, tmp_path):
    """Writes config.json of a run; returns its directory."""

    def write(*overrides, **changes):
      path = tmp_path / 'config.json'
      write_config(path, load_config('demo', overrides))
      values = json.loads(path.read_text())
      for name, value in changes.items():
        section, _, setting = name.partition('__')
        values[section][setting] = value
      path.write_text(json.dumps(values))
      return tmp_path

    return write

  def _differences(self, run, *overrides):
    config = load_config('demo', overrides, workdir=run)
    kept = json.loads((run / 'config.json').read_text())
    return [
      name
      for name in differences(from_json_dict(kept, 'config.json'), config)
      if name not in MAY_MOVE
    ]

  def test_paths_stay_as_typed(self, tmp_path, monkeypatch):
    project = tmp_path / 'project'
    (project / 'model').mkdir(parents=True)
    monkeypatch.chdir(project)
    start = '--config.training.start_from=model'
    path, paths = project / 'config.json', ('--config.data.directory=.', start)
    write_config(path, load_config('demo', paths))
    kept = path.read_text()
    # From elsewhere they mean the same places, and are written as before.
    monkeypatch.chdir(tmp_path)
    config = load_config(path, workdir=project)
    assert config.data.directory == str(project)
    assert config.training.start_from == str(project / 'model')
    assert config.data.vocabulary == 'demo'
    write_config(path, config)
    assert path.read_text() == kept
    # In a project that was moved they start there.
    moved = project.rename(tmp_path / 'moved')
    monkeypatch.chdir(moved)
    path = moved / 'config.json'
    config = load_config(path, workdir=moved)
    assert config.training.start_from == 'model'
    write_config(path, config)
    assert path.read_text() == kept.replace(str(project), str(moved))

  def test_what_is_not_typed_is_as_in_the_run(self, start):
    # Given at its first start, and as if a default had been another one.
    run = start('--config.seeds.split_seed=7', seeds__model_seed=9)
    assert self._differences(run) == []
    assert load_config('demo', workdir=run).seeds.split_seed == 7
    assert self._differences(run, '--config.seeds.model_seed=9') == []
    assert self._differences(run, '--config.seeds.model_seed=1') == [
      'seeds.model_seed'
    ]

  def test_an_optimizer_without_its_rate(self, start, capsys):
    adamw = '--config.client_work.optimizer=adamw'
    note = (
      'fedfish: note: client_work.learning_rate is 0.001, the default of adamw '
      "(the config's 0.1 is for sgd).\n"
    )
    run = start(adamw)
    assert capsys.readouterr().err == note
    config = load_config(run / 'config.json', workdir=run)
    assert config.client_work.learning_rate == 1e-3
    for again in (config, load_config(run / 'config.json', [adamw])):
      assert differences(config, again) == []
    assert capsys.readouterr().err == ''
    assert self._differences(run, adamw) == []
    assert capsys.readouterr().err == note
    # As demo's server has Adam.
    rate = '--config.client_work.learning_rate=0.01'
    given = [adamw, rate, '--config.server.optimizer=adam']
    assert load_config('demo', given).client_work.learning_rate == 0.01
    assert capsys.readouterr().err == ''

  def test_sizes_of_a_directory_that_is_gone(self, start, tmp_path):
    start_from = f'--config.training.start_from={tmp_path}/gone'
    run = start(start_from)
    values = json.loads((run / 'config.json').read_text())
    values['model'] |= dict(preset='from_directory', width=64)
    (run / 'config.json').write_text(json.dumps(values))
    settings = [start_from, '--config.model.preset=from_directory']
    # None is left to the directory, too.
    settings.append('--config.model.width=None')
    assert self._differences(run, *settings) == []
    assert load_config('demo', settings, workdir=run).model.width == 64

  def test_another_preset(self, start):
    run = start()
    preset = '--config.model.preset=small'
    # Its sizes are another model's; those of the run do not return.
    assert 'model.width' in self._differences(run, preset)
    kept = load_config(run / 'config.json', [preset], workdir=run)
    assert kept.model == load_config('demo', [preset]).model

  def test_a_damaged_file_is_left_to_the_run(self, start):
    run = start()
    (run / 'config.json').write_text('{')
    assert load_config('demo', workdir=run) == load_config('demo')

  def test_spellings_of_one_start(self, tmp_path):
    (tmp_path / 'link').symlink_to(tmp_path / 'model')
    first, *others = (
      load_config('demo', [f'--config.training.start_from={start}'])
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


class TestSettingsOfAnotherMethod:
  def test_in_a_file_they_are_left_out_and_named(self, config_file, capsys):
    path = config_file(
      'config["algorithm"] = dict(name="fed_avg", relative_floor=0.5,'
      ' fisher_estimator="example_sq")'
    )
    assert 'relative_floor' not in to_json_dict(load_config(path))['algorithm']
    assert capsys.readouterr().err == (
      'fedfish: note: fed_avg ignores algorithm.relative_floor, '
      'algorithm.fisher_estimator\n'
    )

  def test_required_settings_that_are_not_read(self, capsys):
    # A method whose server takes no step, and runs without scores.
    overrides = [
      '--config.algorithm.name=local_only',
      '--config.server.max_gradient_norm=1',
      '--config.evaluation.num_clients=0',
    ]
    load_config('mnist_personal', overrides)
    assert capsys.readouterr().err == (
      'fedfish: note: local_only ignores server.max_gradient_norm, '
      'server.optimizer, server.learning_rate\n'
      'fedfish: note: `config.evaluation.every_num_rounds` is read only with '
      'num_clients set, found 5\n'
    )

  @pytest.mark.parametrize('is_first', [True, False])
  def test_as_a_flag_it_is_an_error_in_any_order(self, is_first):
    flags = ['--config.algorithm.name=fed_avg']
    flags.insert(0 if is_first else 1, '--config.algorithm.relative_floor=0.5')
    assert (
      '`--config.algorithm.relative_floor` is not read by fed_avg, but by '
      'fed_fish; leave it out, or set `--config.algorithm.name` to one of these'
    ) in _message('demo', *flags)

  def test_a_flag_for_the_method_of_another_flag(self, config_file):
    path = config_file('config["algorithm"] = dict(name="fed_avg")')
    flags = ['--config.algorithm.relative_floor=0.5']
    flags.append('--config.algorithm.name=fed_fish')
    assert load_config(path, flags).algorithm.relative_floor == 0.5

  def test_an_unknown_method_and_all_else_at_once(self):
    text = _message(
      'demo', '--config.algorithm.name=fedfish', '--config.seeds.model_seed=-1'
    )
    assert '`config.algorithm.name` must be one of fed_avg, fed_fish' in text
    assert "found 'fedfish'" in text
    assert '`config.seeds.model_seed` must be at least 0' in text


def test_the_page_of_settings_is_generated(capsys):
  assert main(['configs', '--markdown']) == 0
  page = capsys.readouterr().out
  assert page == describe.to_markdown()
  assert page == (_ROOT / 'docs' / 'settings.md').read_text('utf-8'), (
    'run `fedfish configs --markdown > docs/settings.md`'
  )
