"""Every value of a manifest, wrong in every way: one line, no traceback."""

import copy
import json
import shutil

import pytest
from grouping_jobs import group_lines

from pipelines.source import Fields
from pipelines.splits import SplitRule
from tff_fedfish.data.manifest import find_fault, read_manifest

COMMANDS = {
  'inspect': 'tff_fedfish.cli.inspect',
  'verify': 'tff_fedfish.cli.verify',
}
_LINES = [
  *({'text': f'text {i}', 'url': f'http://h{i % 3}/'} for i in range(9)),
  {'text': 'text 0', 'url': 'http://h0/'},
  b'{',
]
_WRONG_VALUES = [
  *(None, True, False, -1, 0, 7, 1.5, 10**30, float('nan'), '', 'x', '\ud800'),
  *('../../x', '/x', 'a\x1b[2Jb', [], [None], {}, {'x': None}, 'x' * 10_000),
]
# What nothing but the manifest knows: verify must notice every wrong value.
_MUST_NOTICE = (
  *('schema_version', 'corpus', 'key', 'options', 'num_input_files'),
  *('inputs.0.name', 'feature_names', 'shards', 'counts'),
)
# Of these, other values may be right as well.
_MAY_BE_RIGHT = {
  'options.max_record_bytes': {7},
  'options.max_document_bytes': {7},
  'options.max_examples_per_group': {None, 7},
}


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  directory = tmp_path_factory.mktemp('wrong')
  return group_lines(
    directory, _LINES, num_shards=2, drop_duplicates=True, block_bytes=1
  )


def _paths(value, path=()):
  """Yields the path of every value in a manifest, from the outside in."""
  if path:
    yield path
  if isinstance(value, dict | list):
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, inner in items:
      yield from _paths(inner, (*path, name))


def _changed(manifest, path, value):
  manifest = copy.deepcopy(manifest)
  *parents, name = path
  inner = manifest
  for parent in parents:
    inner = inner[parent]
  inner[name] = value
  return manifest


def _is_same(first, second):
  return type(first) is type(second) and first == second


def _at(manifest, path):
  for name in path:
    manifest = manifest[name]
  return manifest


def test_every_wrong_value(fedfish, corpus, tmp_path):
  own = tmp_path / 'corpus'
  shutil.copytree(corpus, own)
  right = json.loads((corpus / 'manifest.json').read_text())
  right['split'] = {'name': 'train', 'names': ['train', 'test'], 'rule': 'r'}
  (own / 'manifest.json').write_text(json.dumps(right))
  assert fedfish('verify', own)[0] == 0
  num_noticed = 0
  for path in _paths(right):
    name = '.'.join(map(str, path))
    for value in _WRONG_VALUES:
      if _is_same(value, _at(right, path)):
        continue
      changed = _changed(right, path, value)
      (own / 'manifest.json').write_text(json.dumps(changed))
      codes = {}
      for command in COMMANDS:
        code, _, errors = fedfish(command, own)
        codes[command] = code
        case = (command, name, value, errors)
        assert code in (0, 2), case
        assert errors.count('\n') == (code == 2), case
        assert not code or errors.startswith('fedfish: error: '), case
      num_noticed += codes['verify'] == 2
      if name.startswith(_MUST_NOTICE) and not (
        value in _MAY_BE_RIGHT.get(name, ())
        if not isinstance(value, list | dict)
        else False
      ):
        assert codes['verify'] == 2, (name, value)
  assert num_noticed > 500


@pytest.mark.parametrize(
  ('path', 'value', 'message'),
  [
    (
      ('counts', 'drops'),
      None,
      '`counts.drops` must be an object, but is None',
    ),
    (
      ('counts', 'records_in'),
      'x',
      "`counts.records_in` must be a whole number from 0 on, but is 'x'",
    ),
    (('drop_examples',), [], '`drop_examples` must be an object, but is []'),
    (
      ('shards', 0, 'name'),
      '../../x',
      "`shards[0].name` must be the name of a file, but is '../../x'",
    ),
    (('shards', 0, 'x'), 1, "`shards[0]` has the unknown 'x'"),
    (('schema_version',), -1, '`schema_version` must be a whole number from 0'),
    (('schema_version',), 0, '`schema_version` must be at least 1, but is 0'),
  ],
)
def test_words(fedfish, corpus, tmp_path, path, value, message):
  own = tmp_path / 'corpus'
  shutil.copytree(corpus, own)
  right = json.loads((corpus / 'manifest.json').read_text())
  changed = _changed(right, path, value)
  (own / 'manifest.json').write_text(json.dumps(changed))
  for command in COMMANDS:
    code, shown, errors = fedfish(command, own)
    assert (code, shown) == (2, '')
    assert errors.startswith(
      f"fedfish: error: '{own}' is not a grouped corpus: it has an unreadable "
      f'manifest.json ({message}'
    )
    assert errors.endswith(
      ' Run `fedfish group` to make one, or name its output directory.\n'
    )


@pytest.mark.parametrize(
  ('path', 'value', 'message'),
  [
    (('corpus',), 'c5', "must have a `corpus` that exists, but has 'c5'"),
    (
      ('key',),
      'page',
      "must have a `key` of domain, host, owner, author, but has 'page'",
    ),
    (('key',), 'author', 'must have the feature author of its `key`, but has'),
    (
      ('options', 'num_shards'),
      3,
      'must have the `options.num_shards` 2, as it lists, but has 3',
    ),
    (
      ('num_input_files',),
      2,
      'must have the `num_input_files` 1, as it lists, but has 2',
    ),
    (
      ('drop_examples', 'malformed_json', 'file'),
      'other.json',
      'must have an example of malformed_json in one of its `inputs`, but has',
    ),
    (
      ('options', 'drop_duplicates'),
      False,
      'must have an `options.drop_duplicates` that explains its drops by '
      'duplicate_text, but has False',
    ),
  ],
)
def test_words_of_verify(fedfish, corpus, tmp_path, path, value, message):
  own = tmp_path / 'corpus'
  shutil.copytree(corpus, own)
  right = json.loads((corpus / 'manifest.json').read_text())
  changed = _changed(right, path, value)
  (own / 'manifest.json').write_text(json.dumps(changed))
  code, shown, errors = fedfish('verify', own)
  assert (code, shown) == (2, '')
  assert errors.startswith(f"fedfish: error: '{own}/manifest.json' {message}")
  assert errors.endswith(
    '. Copy the directory again, or run `fedfish group` again.\n'
  )


@pytest.mark.parametrize(
  'text', ['[' * 200_000, '{"a":' * 200_000, 'null'], ids=range(3)
)
def test_no_manifest_at_all(fedfish, tmp_path, text):
  (tmp_path / 'manifest.json').write_text(text)
  for command in COMMANDS:
    code, _, errors = fedfish(command, tmp_path)
    assert code == 2
    assert 'it has an unreadable manifest.json. Run `fedfish group`' in errors


def test_right_manifests_of_all_kinds(tmp_path):
  lines = [
    {'text': f'text {i % 7}', 'url': f'http://h{i % 3}/', 'author': f'{i}'}
    | ({'timestamp': f'20{i}-01-01'} if i > 11 else {})
    for i in range(30)
  ]
  fields = Fields(key='author', text='text', time='timestamp')
  for i, options in enumerate(
    [
      {'key': 'author'},
      {'drop_duplicates': True, 'max_examples_per_group': 2},
      {'min_examples_per_group': 2},
      {'split': SplitRule(kind='client', held_out_fraction=0.5)},
      {
        'split': SplitRule(kind='time', time='2020-01-01'),
        'drop_duplicates': True,
      },
      {'source_name': 'json_lines', 'key': 'author', 'fields': fields},
    ]
  ):
    output = group_lines(tmp_path / f'{i}', [*lines, b'{'], **options)
    manifests = [path.parent for path in output.rglob('manifest.json')]
    assert manifests
    for directory in manifests:
      assert find_fault(read_manifest(directory)) is None
