"""Raw files in other formats and layouts, as a user of `fedfish group` meets.

Each is refused by a line that names it and says what to do.
"""

import bz2
import gzip
import io
import json
import re
import shlex
import subprocess
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

COMMANDS = {'group': 'tff_fedfish.cli.group'}

_LINES = [{'writer': f'w{i}', 'text': f'text {i}'} for i in range(3)]
_JSON = ''.join(f'{json.dumps(line)}\n' for line in _LINES).encode()


def _tar(mode):
  sink = io.BytesIO()
  with tarfile.open(fileobj=sink, mode=mode) as archive:
    for name in 'ab':
      info = tarfile.TarInfo(f'{name}.jsonl')
      info.size = len(_JSON)
      archive.addfile(info, io.BytesIO(_JSON))
  return sink.getvalue()


def _table(names):
  arrays = [pa.array([f'{i}']) for i in range(len(names))]
  sink = io.BytesIO()
  pq.write_table(pa.Table.from_arrays(arrays, names=names), sink)
  return sink.getvalue()


_PACKED = (
  '`--input` must name text or Parquet, plain or packed once with gzip, zstd, '
  "xz or bzip2, but 'PATH' is "
)
_LAYOUT = (
  "`--input` must hold a JSON object to a line, but 'PATH' holds several "
)

# Name, content, how the line goes on, how it ends.
_REFUSED = [
  (
    'a b.lz4',
    b'\x04\x22\x4d\x18...',
    f"{_PACKED}lz4. Pack it with gzip: `lz4 -dc 'a b.lz4' | gzip > ",
    "'a b.lz4.gz'`.",
  ),
  (
    'a.zip',
    b'PK\x03\x04...',
    f'{_PACKED}zip. Pack it with gzip: `unzip -p a.zip | gzip > a.zip.gz`.',
    '',
  ),
  (
    'beer.stackexchange.com.7z',
    b'7z\xbc\xaf\x27\x1c...',
    f'{_PACKED}7z. Pack it with gzip: `7z e -so beer.stackexchange.com.7z ',
    'Posts.xml | gzip > beer.stackexchange.com.7z.gz`.',
  ),
  (
    'a.jsonl.gz',
    gzip.compress(gzip.compress(_JSON)),
    f'{_PACKED}gzip with gzip inside. Unpack it.',
    '',
  ),
  (
    'a.gz',
    gzip.compress(b'\x28\xb5\x2f\xfd'),
    f'{_PACKED}gzip with zstd inside. Unpack it.',
    '',
  ),
  (
    'a.parquet.gz',
    gzip.compress(_table(['writer', 'text'])),
    f'{_PACKED}gzip with Parquet inside. Unpack it.',
    '',
  ),
  (
    'a.jsonl',
    _tar('w'),
    f'{_PACKED}a tar archive. Unpack it with `tar -xf a.jsonl`, and name the ',
    'files in it.',
  ),
  (
    'a.tar.bz2',
    _tar('w:bz2'),
    f'{_PACKED}bzip2 with a tar archive inside. Unpack it with `tar -xf ',
    'a.tar.bz2`, and name the files in it.',
  ),
  (
    'a.json',
    b'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n',
    f'{_PACKED}a pointer of Git LFS. Fetch the file itself with `git lfs ',
    'pull`.',
  ),
  (
    'a.warc.gz',
    gzip.compress(b'WARC/1.0\r\nWARC-Type: warcinfo\r\n'),
    f'{_PACKED}gzip with WARC inside. Write the texts of its pages to JSON ',
    'lines.',
  ),
  (
    'a.json',
    _JSON.replace(b'\n', b' '),
    f'{_LAYOUT}on one line. Write each to a line, for example with `jq -c . ',
    'FILE`.',
  ),
  (
    'a.json.bz2',
    # The first text is not short.
    bz2.compress(_JSON.replace(b'\n', b'').replace(b'0', b'0' * 50_000)),
    f'{_LAYOUT}on one line. Write each to a line, for example with `jq -c . ',
    'FILE`.',
  ),
  (
    'a.json',
    b'\xef\xbb\xbf'
    + '\n'.join(json.dumps(line, indent=1) for line in _LINES).encode(),
    f'{_LAYOUT}over several lines each. Write each to a line, for example ',
    'with `jq -c . FILE`.',
  ),
  (
    'a.json',
    _JSON.replace(b'\n', b',\r\n'),
    f'{_LAYOUT}with commas between. Write each to a line, for example with ',
    "`(echo [; sed '$ s/,[[:space:]]*$//' FILE; echo ]) | jq -c '.[]'`.",
  ),
  (
    'a.parquet',
    _table(['writer', 'text', 'writer', 'x', 'x']),
    "`--input` must name tables with one column 'writer', but 'PATH' has 2. ",
    'Rename or drop all but one.',
  ),
  (
    'a.parquet',
    _table(['text', 'writer', 'text', 'text']),
    "`--input` must name tables with one column 'text', but 'PATH' has 3. ",
    'Rename or drop all but one.',
  ),
]


def _group(fedfish, directory, *paths):
  return fedfish(
    *('group', 'json_lines', '--input', *paths, '--key_field', 'writer'),
    *('--text_field', 'text', '--output', directory / 'out'),
  )


@pytest.mark.parametrize(
  ('name', 'data', 'message', 'end'), _REFUSED, ids=range(len(_REFUSED))
)
def test_refused(fedfish, tmp_path, name, data, message, end):
  path = tmp_path / name
  path.write_bytes(data)
  code, shown, errors = _group(fedfish, tmp_path, path)
  message = message.replace('PATH', str(path))
  assert errors.endswith(f'fedfish: error: {message}{end}\n')
  assert (code, shown, list(tmp_path.iterdir())) == (2, '', [path])


@pytest.mark.parametrize('end', ['', ',', ', \r\n'])
def test_advice_for_commas_changes_no_object(fedfish, tmp_path, end):
  objects = [{'writer': {'name': 'a'}, 'text': 'if {x}, y'}, {'text': 'z },'}]
  text = ',\n'.join(json.dumps(value, indent=1) for value in objects)
  (tmp_path / 'a').write_text(text + end)
  _, _, errors = _group(fedfish, tmp_path, tmp_path / 'a')
  command = re.search(r'`(\(echo.*) \| jq', errors)[1]
  command = command.replace('FILE', shlex.quote(str(tmp_path / 'a')))
  output = subprocess.run(
    ['sh', '-c', command], capture_output=True, check=True
  )
  assert json.loads(output.stdout) == objects


def test_a_text_may_have_the_mark_of_archives(fedfish, tmp_path):
  line = b'{"writer": "a", "text": "' + b'x' * 232 + b'ustar as"}'
  assert line.find(b'ustar') == 257
  (tmp_path / 'a').write_bytes(line)
  assert _group(fedfish, tmp_path, tmp_path / 'a')[0] == 0


def test_other_columns_may_stand_twice(fedfish, tmp_path):
  path = tmp_path / 'a.parquet'
  path.write_bytes(_table(['writer', 'text', 'x', 'x']))
  assert _group(fedfish, tmp_path, path)[0] == 0


def test_files_of_which_nothing_could_be_used_are_named(fedfish, tmp_path):
  contents = {
    'a.jsonl': _JSON,
    'b.csv': b'writer,text\nw1,text 1\n',
    'c.html': b'<html>\n',
    'd.jsonl': b'{"writer": "w1", "text": ""}\n' + _JSON[:-3],
    'e.jsonl': b'{"writer": 1.5, "text": "no key"}',
    'f.jsonl.gz': gzip.compress(_JSON)[:10],
    'g.jsonl': b'',
  }
  for name, content in contents.items():
    (tmp_path / name).write_bytes(content)
  paths = [tmp_path / name for name in contents]
  code, shown, _ = _group(fedfish, tmp_path, *paths)
  assert code == 0
  assert re.findall(
    r'^(.*): warning: none of (.*) could be used', shown, re.M
  ) == [
    ('b.csv', '2 records'),
    ('c.html', '1 record'),
    ('e.jsonl', '1 record'),
  ]
  assert 'f.jsonl.gz: truncated_file, 0 records read.' in shown


@pytest.mark.parametrize(
  ('data', 'advice'),
  [
    (b'writer,text\nw1,text 1\n', 'Name other files.'),
    (
      b'{"text": "a"}\n{"text": "b", "writer": ""}\n{"text": "c"}',
      'Name other files, or another `--key_field`.',
    ),
    (
      b'{"writer": "a"}\n' * 3
      + b'{"writer": "a", "text": "\xff"}\n{"text": "a"}',
      'Name other files, or another `--text_field`.',
    ),
  ],
)
def test_advice_names_an_option_that_is_the_cause(
  fedfish, tmp_path, data, advice
):
  (tmp_path / 'a').write_bytes(data)
  code, _, errors = _group(fedfish, tmp_path, tmp_path / 'a')
  assert code == 2
  assert errors.endswith(f' {advice}\n')
