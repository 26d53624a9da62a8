"""7z archives: whole, cut off, corrupt, of the wrong content, partly read."""

import gc
import random
import struct
import threading
import tracemalloc
import zlib

import hypothesis
import hypothesis.strategies as st
import py7zr
import pytest

from pipelines.raw_bytes import read_chunks
from pipelines.seven_zip import read_member_chunks
from pipelines.source import Drop
from tff_fedfish.errors import UserError

# Half of every byte is left when it is packed.
_POSTS = random.Random(5).randbytes(100_000).hex().encode()


def _write(path, members, **options):
  with py7zr.SevenZipFile(path, 'w', **options) as archive:
    for name, data in members.items():
      archive.writestr(data, name)
  return str(path)


def _read(path, wanted='Posts.xml'):
  """Returns what could be read, and the `Drop` that ended it."""
  chunks = []
  try:
    for chunk in read_member_chunks(str(path), wanted):
      chunks.append(chunk)
  except Drop as drop:
    return b''.join(chunks), drop
  return b''.join(chunks), None


@pytest.mark.parametrize(
  'method',
  [
    py7zr.FILTER_LZMA,
    py7zr.FILTER_LZMA2,
    py7zr.FILTER_BZIP2,
    py7zr.FILTER_PPMD,
    py7zr.FILTER_ZSTD,
    py7zr.FILTER_DEFLATE,
    py7zr.FILTER_COPY,
  ],
)
def test_methods(tmp_path, method):
  filters = [{'id': method, 'preset': 1}]
  if method == py7zr.FILTER_PPMD:
    filters = [{'id': method, 'order': 6, 'mem': '16m'}]
  path = _write(tmp_path / 'a', {'Posts.xml': _POSTS}, filters=filters)
  assert _read(path) == (_POSTS, None)


def test_default_method_through_the_reader_of_all_formats(tmp_path):
  path = _write(tmp_path / 'a.7z', {'Posts.xml': _POSTS})
  assert b''.join(read_chunks(path)) == _POSTS


def test_one_file_of_several(tmp_path):
  members = {
    'Badges.xml': b'b' * 9,
    'site/Posts.xml': b'p' * 9,
    'Users.xml': b'',
  }
  path = _write(tmp_path / 'a', members)
  assert _read(path) == (b'p' * 9, None)
  assert _read(path, 'Badges.xml') == (b'b' * 9, None)
  assert _read(path, 'Users.xml') == (b'', None)


@pytest.mark.parametrize(
  ('members', 'found'),
  [
    ({'Users.xml': b'a', 'Tags.xml': b''}, "'Users.xml', 'Tags.xml'. Leave it"),
    ({}, 'nothing. Leave it'),
    (
      {f'{i}.xml': b'a' for i in range(6)},
      "'0.xml', '1.xml', '2.xml', '3.xml', '4.xml', .... Leave it",
    ),
    (
      {'a/Posts.xml': b'a', 'b/Posts.xml': b'b', 'c': b'c'},
      "'a/Posts.xml', 'b/Posts.xml'. Unpack it, and name the files",
    ),
  ],
)
def test_no_such_file_or_several(tmp_path, members, found):
  path = _write(tmp_path / 'a', members)
  with pytest.raises(UserError) as raised:
    _read(path)
  message = str(raised.value)
  assert message.startswith(
    '`--input` must name 7z archives that hold one file Posts.xml, but '
    f'{path!r} holds {found}'
  )


@pytest.mark.parametrize('header_encryption', [False, True])
def test_password(tmp_path, header_encryption):
  path = _write(
    tmp_path / 'a',
    {'Posts.xml': b'a'},
    password='p',
    header_encryption=header_encryption,
  )
  with pytest.raises(UserError, match=r'has a password. Unpack it, and name'):
    _read(path)


def test_archive_cut_off_has_lost_everything(tmp_path):
  path = tmp_path / 'a'
  _write(path, {'Posts.xml': _POSTS})
  data = path.read_bytes()
  for size in (6, 31, 32, 50, len(data) // 2, len(data) - 1):
    path.write_bytes(data[:size])
    found, drop = _read(path)
    assert not found
    assert (drop.reason, drop.damage) == ('truncated_file', True)
    assert drop.byte == size


def test_corrupt_archive_keeps_what_was_read(tmp_path):
  path = tmp_path / 'a'
  posts = _POSTS * 15
  _write(path, {'Posts.xml': posts}, filters=[{'id': py7zr.FILTER_BZIP2}])
  data = bytearray(path.read_bytes())
  data[-50_000] ^= 255
  path.write_bytes(data)
  found, drop = _read(path)
  # Of the third block of 900 kB a part may come before its checksum is met.
  assert found[:1_800_000] == posts[:1_800_000]
  assert (drop.reason, drop.damage) == ('corrupt_file', True)
  assert 0 < drop.byte < len(data)


def test_wrong_checksum(tmp_path):
  path = tmp_path / 'a'
  _write(path, {'Posts.xml': _POSTS}, filters=[{'id': py7zr.FILTER_COPY}])
  data = path.read_bytes()
  # What is stored as it is begins behind the 32 bytes of the start.
  assert data[32:].startswith(_POSTS)
  path.write_bytes(data[:40] + b'x' + data[41:])
  found, drop = _read(path)
  assert found == _POSTS[:8] + b'x' + _POSTS[9:]
  assert (drop.reason, drop.byte) == ('corrupt_file', 32 + len(_POSTS))


def _small_archive(path):
  """Returns an archive whose list of files is not packed, and that list."""
  with py7zr.SevenZipFile(
    path, 'w', filters=[{'id': py7zr.FILTER_ZSTD}]
  ) as archive:
    archive.set_encoded_header_mode(False)
    archive.writestr(b'abc' * 99, 'Posts.xml')
    archive.writestr(b'b', 'b')
  data = path.read_bytes()
  offset, _ = struct.unpack('<QQ', data[12:28])
  return data, slice(32 + offset, len(data))


def _with_checksums(data, listed):
  """Makes the checksums right: of the list, and of where it is."""
  place = data[12:28] + struct.pack('<I', zlib.crc32(data[listed]))
  start = data[:8] + struct.pack('<I', zlib.crc32(place)) + place
  return start + data[32:]


@pytest.fixture(scope='module')
def small_archive(tmp_path_factory):
  return _small_archive(tmp_path_factory.mktemp('small') / 'a')


@hypothesis.settings(deadline=None, max_examples=150)
@hypothesis.given(data=st.data(), is_crafted=st.booleans())
def test_any_damage_is_a_drop_or_an_error_of_the_user(
  small_archive, tmp_path_factory, data, is_crafted
):
  archive, listed = small_archive
  archive = bytearray(archive)
  for _ in range(data.draw(st.integers(1, 4))):
    place = data.draw(st.integers(6, len(archive) - 1))
    archive[place] = data.draw(st.integers(0, 255))
  if is_crafted:
    archive = _with_checksums(bytes(archive), listed)
  path = tmp_path_factory.mktemp('damage') / 'a'
  path.write_bytes(archive)
  try:
    _read(path)
  except UserError:
    pass


def test_method_that_py7zr_does_not_know(small_archive, tmp_path):
  data, listed = small_archive
  zstd = bytes.fromhex('04f71101')
  assert data.count(zstd) == 1
  data = data.replace(zstd, bytes.fromhex('04f711ff'))
  path = tmp_path / 'a'
  path.write_bytes(_with_checksums(data, listed))
  with pytest.raises(UserError, match='is packed by another method. Unpack it'):
    _read(path)


def test_reader_that_stops_ends_the_thread(tmp_path):
  data = bytes(32 << 20)
  filters = [{'id': py7zr.FILTER_COPY}]
  path = _write(tmp_path / 'a', {'Posts.xml': data}, filters=filters)
  before = threading.active_count()
  chunks = read_member_chunks(path)
  assert len(next(chunks)) <= 1 << 20
  assert threading.active_count() == before + 1
  chunks.close()
  assert threading.active_count() == before
  # Nor is one left where the reader is just forgotten.
  chunks = read_member_chunks(path)
  next(chunks)
  del chunks
  gc.collect()
  assert threading.active_count() == before


def test_memory_is_bounded(tmp_path):
  data = bytes(64 << 20)
  filters = [{'id': py7zr.FILTER_COPY}]
  path = _write(tmp_path / 'a', {'Posts.xml': data}, filters=filters)
  tracemalloc.start()
  assert sum(map(len, read_member_chunks(path))) == len(data)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert peak < 32 << 20
