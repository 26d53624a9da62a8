"""`fedfish group json_lines` as a user meets it."""

import json
import re

import pytest

from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.manifest import read_manifest

COMMANDS = {
  'group': 'tff_fedfish.cli.group',
  'inspect': 'tff_fedfish.cli.inspect',
  'verify': 'tff_fedfish.cli.verify',
}


@pytest.fixture
def raw(tmp_path):
  """Six lines by two writers, of which one has no text and one no writer."""
  path = tmp_path / 'posts.jsonl'
  lines = [
    {'body': f'text {i}', 'user': {'name': f'w{i % 2}'}, 'created': f'{i}'}
    for i in range(4)
  ]
  lines += [{'body': 5, 'user': {'name': 'w1'}}, {'body': 'text'}]
  path.write_text('\n'.join(map(json.dumps, lines)))
  return path


def _command(raw, output, *options):
  return (
    *('group', 'json_lines', '--input', raw, '--output', output),
    *('--key_field', 'user.name', '--text_field', 'body', *options),
  )


def test_group_inspect_and_verify(fedfish, raw, tmp_path):
  output = tmp_path / 'my posts'
  code, shown, progress = fedfish(
    *_command(raw, output, '--time_field', 'created', '--num_shards', 2)
  )
  assert code == 0
  assert re.fullmatch(
    r'Grouping 1 file by user.name into 2 shards\n'
    r'Grouped in \S+ s, \S+ \S+ of input per second\.\n',
    progress,
  )
  assert f'{output}: my posts by user.name\n' in shown
  assert re.search(
    r'dropped: malformed_text +1 +posts.jsonl, record 5 +\{"body": 5, ', shown
  )
  assert re.search(r'dropped: missing_key +1 +posts.jsonl, record 6', shown)
  assert re.search(r'features +text, timestamp *\n', shown)
  code, shown, _ = fedfish('inspect', output)
  assert code == 0
  assert re.search(r'\n +w0 +2 +4 ', shown)
  code, shown, _ = fedfish('verify', output)
  assert code == 0
  assert '2 groups, 2 records, 4 examples' in shown


def test_zstd_with_a_window_of_gigabytes(fedfish, raw, tmp_path):
  data, packed = raw.read_bytes(), tmp_path / 'posts.jsonl.zst'
  # The window's size, 2 GiB; one block, the last.
  header = b'\x28\xb5\x2f\xfd\0\xa8' + (len(data) << 3 | 1).to_bytes(
    3, 'little'
  )
  packed.write_bytes(header + data)
  command = _command(packed, tmp_path / 'out')
  code, _, errors = fedfish(*command)
  assert code == 2
  assert errors.endswith('Add `--max_window_log 31`.\n')
  assert not (tmp_path / 'out').exists()
  code, shown, _ = fedfish(*command, '--max_window_log', 31)
  assert code == 0
  assert re.search(r'examples stored +4', shown)


@pytest.mark.parametrize(
  ('output', 'options', 'name'),
  [
    ('corpora/posts', (), 'posts'),
    ('.', (), 'here'),
    ('corpora/posts', ('--name', 'Ünsere [bold]'), 'Ünsere [bold]'),
  ],
)
def test_name(fedfish, raw, tmp_path, monkeypatch, output, options, name):
  (tmp_path / 'here').mkdir()
  monkeypatch.chdir(tmp_path / 'here')
  code, shown, _ = fedfish(*_command(raw, output, *options))
  assert code == 0
  assert f': {name} by user.name\n' in shown
  assert read_manifest(output).corpus == name
  assert fedfish('verify', output)[0] == 0


def test_splits(fedfish, raw, tmp_path):
  command = _command(raw, tmp_path / 'out', '--time_field', 'created')
  # None has a date: all are dropped, and that is said.
  code, _, errors = fedfish(
    *command, '--split_by', 'time', '--split_time', '2020-01-01'
  )
  assert code == 2
  assert '(1 malformed_text, 4 malformed_timestamp, 1 missing_key). ' in errors
  assert errors.endswith('. Name other files.\n')
  code, shown, _ = fedfish(
    *command, '--split_by', 'client', '--held_out_fraction', 0.5
  )
  assert code == 0
  assert f'{tmp_path}/out/train: out by user.name' in shown


_TIMES = {
  # As given -> in order. A key of its own for each kind of times.
  'numbers': [[12, 1.5, -3, '1e1', 2], [-3, 1.5, 2, '1e1', 12]],
  # In UTC 22:00, 21:30, half a second after 22:00, and 22:01.
  'moments': [
    [
      '2024-03-01T22:00:00Z',
      '2024-03-01T23:30:00+02:00',
      '2024-03-01T22:00:00.5Z',
      '2024-03-02T07:01:00+09:00',
    ],
    [
      '2024-03-01T23:30:00+02:00',
      '2024-03-01T22:00:00Z',
      '2024-03-01T22:00:00.5Z',
      '2024-03-02T07:01:00+09:00',
    ],
  ],
  'mixed': [
    ['2018-01-01', 5, 'soon', None],
    [None, 'soon', 5, '2018-01-01'],
  ],
}


def test_times_sort_by_value(fedfish, tmp_path):
  lines = [
    {'user': {'name': key}, 'body': f'{time}', 'created': time}
    for key, (times, _) in _TIMES.items()
    for time in times
  ]
  # The copy of a text stays that has the earliest time.
  lines += [
    {'user': {'name': 'copies'}, 'body': 'same', 'created': time}
    for time in (10, 9)
  ]
  raw, output = tmp_path / 'raw.jsonl', tmp_path / 'out'
  raw.write_text('\n'.join(map(json.dumps, lines)))
  command = _command(raw, output, '--time_field', 'created')
  code, shown, _ = fedfish(*command, '--drop_duplicates')
  assert code == 0
  assert re.search(r'groups with times of several kinds +1\b', shown)
  manifest = read_manifest(output)
  assert (manifest.order, manifest.counts.num_mixed_time_groups) == (2, 1)
  corpus = GroupedCorpus(output)
  for key, (_, times) in _TIMES.items():
    texts = [e['text'].decode() for e in corpus.examples(key.encode())]
    assert texts == list(map(str, times))
  (copy,) = corpus.examples(b'copies')
  # Stored as it was given.
  assert copy['timestamp'] == b'9'
  assert fedfish('verify', output)[0] == 0


_REQUIRED = ('--key_field', 'user.name', '--text_field', 'body')


@pytest.mark.parametrize(
  ('corpus', 'options', 'message'),
  [
    (
      'json_lines',
      (*_REQUIRED, '--key', 'author'),
      '`--key` goes with other corpora; json_lines has `--key_field`, found '
      'json_lines and `--split_by` None. Leave it out.',
    ),
    (
      'json_lines',
      ('--text_field', 'body'),
      '`--key_field` is required with json_lines: what the examples of a group '
      'share: text, or an integer. Name a field, such as user.name.',
    ),
    (
      'json_lines',
      (*_REQUIRED, '--time_field', ''),
      '`--time_field` must be the name of a field, or a path such as '
      "user.name, but is ''. Name a field.",
    ),
    *(
      (
        'json_lines',
        (*_REQUIRED, '--keep_field', 'a', '--keep_field', field),
        '`--keep_field` must name each field once, and neither text nor '
        'timestamp, the features of `--text_field` and `--time_field`, but is '
        f"'{field}'. Leave it out, or rename the field.",
      )
      for field in ('text', 'a')
    ),
    (
      'json_lines',
      (*_REQUIRED, '--name', 'a\nb'),
      "`--name` must be 1 to 100 printable characters, but is 'a\\nb'. Name "
      'another.',
    ),
    (
      'json_lines',
      (*_REQUIRED, '--split_by', 'time', '--split_time', '2020-01-01'),
      '`--split_by time` needs `--time_field` with json_lines, but there is '
      'none. Name the field with the time, or split by client.',
    ),
    (
      'json_lines',
      (*_REQUIRED, '--split_by', 'source'),
      '`--split_by source` needs a corpus with a split of its own, but '
      'json_lines has none. Split it by client or by time.',
    ),
    (
      'json_lines',
      ('--key_field', 'writer', '--text_field', 'body', '--time_field', 'when'),
      "`--key_field` 'writer' and `--time_field` 'when' must be in one of the "
      'first 6 records of `--input`, but none has it. The first has body, '
      'user.name, created. Name one of these.',
    ),
    (
      'json_lines',
      (*_REQUIRED, '--key_function', 'my_module.key'),
      '`--key_field` must not be given with `--key_function`, which returns '
      'the key. Leave one of them out.',
    ),
    (
      'c4',
      ('--key', 'host', '--key_function', 'my_module.key'),
      '`--key` must not be given with `--key_function`, which returns the key. '
      'Leave one of them out.',
    ),
    *(
      (
        'c4',
        (f'--{name}', 'x'),
        f'`--{name}` goes with json_lines, found c4 and `--split_by` None. '
        'Leave it out.',
      )
      for name in (
        'key_field',
        'text_field',
        'time_field',
        'keep_field',
        'name',
      )
    ),
  ],
)
def test_errors_are_one_line(fedfish, raw, tmp_path, corpus, options, message):
  code, shown, errors = fedfish(
    *('group', corpus, '--input', raw, '--output', tmp_path / 'out', *options)
  )
  assert (code, shown) == (2, '')
  assert errors == f'fedfish: error: {message}\n'
  assert list(tmp_path.iterdir()) == [raw]
