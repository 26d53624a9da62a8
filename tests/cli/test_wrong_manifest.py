"""Every value of a manifest, wrong in every way: one line, no traceback."""

import copy
import json
import shutil

import pytest
from grouping_jobs import group_lines

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
  *(None, True, -1, 0, 10**30, float('nan'), '\ud800', 'a\x1b[2Jb'),
  *([None], {'x': None}),
]


@pytest.fixture
def corpus(whole_corpus, tmp_path):
  return shutil.copytree(whole_corpus, tmp_path / 'corpus')


@pytest.fixture(scope='module')
def whole_corpus(tmp_path_factory):
  directory = tmp_path_factory.mktemp('wrong')
  return group_lines(
    directory, _LINES, num_shards=2, drop_duplicates=True, run_bytes=1
  )


def _paths(value, path=()):
  """Yields the path of every value in a manifest, of lists of the first."""
  if path:
    yield path
  if isinstance(value, dict | list):
    items = value.items() if isinstance(value, dict) else enumerate(value[:1])
    for name, inner in items:
      yield from _paths(inner, (*path, name))


def _changed(manifest, path, value):
  manifest = inner = copy.deepcopy(manifest)
  *parents, name = path
  for parent in parents:
    inner = inner[parent]
  inner[name] = value
  return manifest


def _write(corpus, manifest):
  (corpus / 'manifest.json').write_text(json.dumps(manifest))


def test_layout_does_not_matter(fedfish, corpus):
  right = json.loads((corpus / 'manifest.json').read_text())
  _write(corpus, dict(reversed(right.items())))
  assert fedfish('verify', corpus)[0] == 0


def test_every_change_is_noticed(fedfish, corpus):
  right = json.loads((corpus / 'manifest.json').read_text())
  for path in _paths(right):
    if path == ('schema_version',):
      continue
    _write(corpus, _changed(right, path, ['another']))
    code, shown, errors = fedfish('inspect', corpus)
    assert (code, shown) == (2, ''), path
    assert errors.startswith(
      f"fedfish: error: '{corpus}/manifest.json' must hold the manifest of a "
      'grouped corpus, but cannot be read (`sha256` must be '
    )
    assert errors.endswith(
      '). Copy the directory again, or run `fedfish group` again.\n'
    )


@pytest.mark.slow
def test_every_wrong_value_without_a_hash(fedfish, corpus):
  right = json.loads((corpus / 'manifest.json').read_text())
  del right['sha256']
  right['split'] = {'name': 'train', 'names': ['train', 'test'], 'rule': 'r'}
  _write(corpus, right)
  assert fedfish('verify', corpus)[0] == 0
  for path in _paths(right):
    for value in _WRONG_VALUES:
      _write(corpus, _changed(right, path, value))
      code, _, errors = fedfish('inspect', corpus)
      case = (path, value, errors)
      assert code in (0, 2), case
      assert errors.count('\n') == (code == 2), case
      assert not code or errors.startswith('fedfish: error: '), case


def test_a_wrong_value_is_named(fedfish, corpus):
  right = json.loads((corpus / 'manifest.json').read_text())
  del right['sha256']
  _write(corpus, _changed(right, ('shards', 0, 'name'), '../../x'))
  assert fedfish('verify', corpus)[2].startswith(
    f"fedfish: error: '{corpus}/manifest.json' must hold the manifest of a "
    'grouped corpus, but cannot be read (`shards[0].name` must be the name of '
    "a file, but is '../../x'). Copy"
  )


@pytest.mark.parametrize(
  'text', ['[' * 200_000, '{"a":' * 200_000, 'null'], ids=range(3)
)
def test_no_manifest_at_all(fedfish, tmp_path, text):
  (tmp_path / 'manifest.json').write_text(text)
  for command in COMMANDS:
    code, _, errors = fedfish(command, tmp_path)
    assert code == 2
    assert errors.count('\n') == 1
    assert 'must hold the manifest of a grouped corpus, but cannot' in errors
