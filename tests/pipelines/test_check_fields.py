"""Fields that no record has, or that hold values of another kind."""

import decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from grouping_jobs import write_lines

from pipelines.check_fields import require_fields
from pipelines.source import Fields
from tff_fedfish.errors import UserError

_FIELDS = Fields(key='user.name', text='body', time='created')
_MAX_BYTES = 1000


def _refused(paths, **fields):
  """Returns the one line that says which field there is not."""
  with pytest.raises(UserError) as raised:
    require_fields(Fields(**fields), list(map(str, paths)), _MAX_BYTES)
  assert '\n' not in str(raised.value)
  return str(raised.value)


def test_all_are_there(tmp_path):
  # In no record together, and null also counts; the time is in another file.
  paths = [
    write_lines(
      tmp_path / 'a',
      [b'{', {'body': 'a'}, {'user': {'name': None}}, {'created': 5}, b'x'],
    ),
    write_lines(tmp_path / 'b', [{'user': {'name': 'a'}}]),
  ]
  require_fields(_FIELDS, list(map(str, paths)), _MAX_BYTES)
  # Nothing can be read at all: the job says why.
  path = write_lines(tmp_path / 'c', [b'{', b'[]'])
  require_fields(_FIELDS, [str(path)], _MAX_BYTES)


def test_only_the_first_records_are_read(tmp_path):
  lines = [{'k': 'a', 't': 'b'}] * 1000 + [{'when': 1}]
  paths = [write_lines(tmp_path / f'{i:02d}', lines) for i in range(10)]
  paths.append(write_lines(tmp_path / '10', lines[-1:]))
  assert _refused(paths, key='k', text='t', time='when') == (
    "`--time_field` 'when' must be in one of the first 10,000 records of "
    '`--input`, but none has it. The first has k, t. Name one of these.'
  )


def test_every_key_field_is_looked_at(tmp_path):
  path = write_lines(tmp_path / 'a', [{'k': 'a', 't': 'b', 'x': 1.5}])
  assert _refused([path], key=('k', 'x'), text='t').startswith(
    "`--key_field` 'x' must hold text or integers, but the first 1 records "
  )


def test_kept_fields_must_be_there(tmp_path):
  path = write_lines(tmp_path / 'a', [{'k': 'a', 't': 'b', 'x': [1]}])
  assert _refused([path], key='k', text='t', keep=('x', 'y', 'z')) == (
    "`--keep_field` 'y' and `--keep_field` 'z' must be in one of the first 1 "
    'records of `--input`, but none has it. The first has k, t, x. Name one of '
    'these.'
  )


def test_which_there_are(tmp_path):
  value = {
    'user': {'id': 1, 'none': {}},
    'tags': [{'x': 1}],
    'a\nb\x1b[2J': 1,
    'b': {'a': {'a': {'a': {'a': {'a': 1}}}}},
    'x' * 10_000: 1,
  }
  value |= {f'{i}': 1 for i in range(99)}
  path = write_lines(tmp_path / 'a', [b'{', value, {'other': 1}])
  message = _refused([path], key='user.x', text='body')
  assert message.startswith(
    "`--key_field` 'user.x' and `--text_field` 'body' must be in one of the "
    'first 2 records of `--input`, but none has it. The first has user.id, '
    f'user.none, tags, a%0Ab%1B[2J, b.a.a.a.a, {"x" * 60}, 0, 1, '
  )
  assert message.endswith(', 33. Name one of these.')


@pytest.mark.parametrize(
  ('option', 'values', 'found'),
  [
    (
      'time',
      [{'$date': '2020-01-01'}, None],
      "text or numbers, but the first 2 records have none: it holds {'$date': "
      "'2020-01-01'}, of type dict. Name another field, such as x.$date, or",
    ),
    (
      'time',
      [decimal.Decimal('1.5'), None],
      'text or numbers, but the first 2 records have none: it holds '
      "Decimal('1.5'), of type Decimal. Name another field, or",
    ),
    # As pandas writes whole numbers of which one is missing.
    (
      'key',
      [7.0, 7.0, None, 9.0],
      'text or integers, but the first 4 records have none: it holds 7.0, of '
      'type float. Name another field, or',
    ),
    (
      'key',
      [[1], None],
      'text or integers, but the first 2 records have none: it holds [1], of '
      'type list. Name another field, or',
    ),
    (
      'text',
      [None, {'body': 'a'}],
      "text, but the first 2 records have none: it holds {'body': 'a'}, of "
      'type dict. Name another field, such as x.body, or',
    ),
    (
      'text',
      [5],
      'text, but the first 1 records have none: it holds 5, of type int. '
      'Name another field, or',
    ),
  ],
  ids=range(6),
)
def test_value_of_another_type(tmp_path, option, values, found):
  rows = [{'key': 'a', 'text': 'a', 'x': value} for value in values]
  pq.write_table(pa.Table.from_pylist(rows), tmp_path / 'a')
  fields = {'key': 'key', 'text': 'text'} | {option: 'x'}
  assert _refused([tmp_path / 'a'], **fields) == (
    f"`--{option}_field` 'x' must hold {found} store this one as text."
  )
