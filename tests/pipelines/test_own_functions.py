"""A user's own key and filter: what they see, return, and raise."""

import re
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from grouping_jobs import make_job, write_lines

from pipelines.job import run_group_job
from pipelines.own_functions import OwnFunction
from pipelines.source import Drop, Fields
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.manifest import read_manifest
from tff_fedfish.errors import UserError

_MODULE = """
import numpy as np

def key(record):
  record.pop('text', None)  # Changes only a copy.
  return record['meta']['site']

def keep(record):
  return np.float64(record['score']) > 1

def has_site(record):
  return record['meta']['site'] is not None

def post(record):
  return ' '.join(sorted(record))

def value(record):
  if record['value'] == 'raise':
    raise ValueError('one\\nline')
  if record['value'] == 'exit':
    raise SystemExit(3)
  return record['value']

NUMBER = 7
"""


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
  """A module in the current directory, of a name of its own."""
  directory = tmp_path / 'here'
  directory.mkdir()
  (directory / 'own_module_here.py').write_text(_MODULE)
  monkeypatch.chdir(directory)
  monkeypatch.delitem(sys.modules, 'own_module_here', raising=False)
  # What a job adds to it is gone at the end.
  monkeypatch.setattr(sys, 'path', [*sys.path])


def _values():
  """Ten records of three sites, of which two have none."""
  sites = ['a', 'b', None, 'a', 'c'] * 2
  return [
    {'text': f'{i}', 'meta': {'site': site}, 'score': i}
    for i, site in enumerate(sites)
  ]


@pytest.mark.parametrize(
  ('source_name', 'fields'),
  [('c4', None), ('json_lines', Fields(key=(), text='text'))],
)
def test_key_and_filter(tmp_path, source_name, fields):
  raw = write_lines(tmp_path / 'raw', [*_values(), {'text': ''}])
  job = make_job(
    [raw],
    source_name=source_name,
    fields=fields,
    key='own_module_here.key',
    key_function='own_module_here.key',
    filter='own_module_here.keep',
  )
  (manifest,) = run_group_job(job, tmp_path / 'out')
  assert read_manifest(tmp_path / 'out') == manifest
  # 11 in = 6 out + 2 with a score up to 1 + 2 without a site, and no text.
  assert manifest.counts.records_in == 11
  assert manifest.counts.drops == {'empty_text': 1, 'filtered': 2, 'no_key': 2}
  assert manifest.options['key_function'] == 'own_module_here.key'
  assert manifest.options['filter'] == 'own_module_here.keep'
  assert 'key_field' not in manifest.options
  groups = GroupedCorpus(tmp_path / 'out').stream()
  assert {
    name: sorted(example['text'] for example in examples)
    for name, examples in groups
  } == {b'a': [b'3', b'5', b'8'], b'b': [b'6'], b'c': [b'4', b'9']}


def test_other_columns_of_a_table(tmp_path):
  table = pa.Table.from_pylist([v | {'url': 'http://h/'} for v in _values()])
  pq.write_table(table, tmp_path / 'raw')
  # What a filter leaves out is no fault.
  job = make_job(
    [tmp_path / 'raw'], filter='own_module_here.has_site', strict=True
  )
  (manifest,) = run_group_job(job, tmp_path / 'out')
  assert manifest.counts.drops == {'filtered': 2}


def test_features_of_a_post(tmp_path):
  raw = tmp_path / 'Posts.xml'
  raw.write_text(
    '<posts>\n<row Id="1" PostTypeId="2" Body="x" OwnerUserId="7" />\n</posts>'
  )
  name = 'own_module_here.post'
  job = make_job(
    [raw], source_name='stack_overflow', key=name, key_function=name
  )
  run_group_job(job, tmp_path / 'out')
  (group_id,) = GroupedCorpus(tmp_path / 'out').client_ids
  assert group_id == b'author text timestamp type url'


@pytest.mark.parametrize(
  ('value', 'found'),
  [
    (' é ', ' é '.encode()),
    (None, 'no_key'),
    (' ', 'empty_key'),
    ('\ud800', 'unpaired_surrogate'),
    (7, 'must return text or None, but returned a value of type int'),
    ('raise', 'must accept every record, but raised ValueError: one line'),
    ('exit', 'must accept every record, but raised SystemExit: 3'),
  ],
)
def test_keys(value, found):
  key = OwnFunction('key_function', 'own_module_here.value').key
  if isinstance(found, bytes):
    assert key({'value': value}, 3, 'a/x.jsonl') == found
    return
  with pytest.raises((Drop, UserError)) as raised:
    key({'value': value}, 3, 'a/x.jsonl')
  if isinstance(raised.value, Drop):
    assert raised.value.reason == found
    return
  message = str(raised.value)
  shown = "`--key_function` 'own_module_here.value' "
  assert message.startswith(f"{shown}{found} for record 3 of 'a/x.jsonl'")
  # Where it is raised in the module.
  line = _MODULE.splitlines().index("    raise ValueError('one\\nline')") + 1
  lines = re.findall(r'\(line (\d+) of .*own_module_here.py.\)', message)
  found = {'raise': [line], 'exit': [line + 2]}
  assert lines == list(map(str, found.get(value, [])))


@pytest.mark.parametrize('value', [None, 1, 'yes'])
def test_a_filter_returns_true_or_false(value):
  keep = OwnFunction('filter', 'own_module_here.value').require_kept
  with pytest.raises(UserError, match='must return True or False, but ret'):
    keep({'value': value}, 3, 'x.jsonl')


@pytest.mark.parametrize(
  ('name', 'raised'),
  [
    ('own_module_there.key', "No module named 'own_module_there'"),
    ('own_module_here.none', "has no attribute 'none'"),
    ('own_module_here.NUMBER', 'TypeError: NUMBER is no function'),
    ('key', 'ValueError: Empty module name'),
    ('', 'ValueError: Empty module name'),
    ('broken.key', r'ZeroDivisionError: division by zero\. Correct it'),
  ],
)
def test_what_cannot_be_imported(tmp_path, name, raised):
  (tmp_path / 'here' / 'broken.py').write_text('1 / 0')
  with pytest.raises(UserError, match=raised) as error:
    make_job([], filter=name)
  assert str(error.value).startswith(
    f'`--filter` {name!r} must name a function in an importable module, '
  )
