"""Hosts are compared by what they have, and named where it differs."""

import os

import pytest

from tff_fedfish.errors import FailedError
from tff_fedfish.runtime import ray_hosts
from tff_fedfish.runtime.ray_hosts import Contents, HostFacts


def test_contents_of_a_directory(tmp_path):
  (tmp_path / 'a').write_bytes(b'123')
  (tmp_path / 'b').write_bytes(b'4567')
  (tmp_path / 'inner').mkdir()
  first = ray_hosts.contents_of(str(tmp_path))
  assert first.text == '3 files, 7 bytes'
  # Hidden files are others'.
  (tmp_path / '.lock').write_bytes(b'1')
  assert ray_hosts.contents_of(str(tmp_path)) == first
  for name, content in (('a', b'124'), ('c', b''), ('inner/d', b'')):
    (tmp_path / name).write_bytes(content)
    found = ray_hosts.contents_of(str(tmp_path))
    # Directories count by name.
    assert (found.digest == first.digest) == (name == 'inner/d')
    (tmp_path / name).unlink()
    (tmp_path / 'a').write_bytes(b'123')


def test_large_files_count_by_size(tmp_path):
  path = tmp_path / 'shard'
  path.write_bytes(b'a' * (2 << 20))
  first = ray_hosts.contents_of(str(path))
  path.write_bytes(b'b' * (2 << 20))
  assert ray_hosts.contents_of(str(path)) == first
  path.write_bytes(b'b' * ((2 << 20) + 1))
  assert ray_hosts.contents_of(str(path)) != first


def test_contents_that_cannot_be_read(tmp_path):
  found = ray_hosts.contents_of(str(tmp_path / 'absent'))
  assert found == Contents('', 'cannot be read (No such file or directory)')
  os.symlink('nowhere', tmp_path / 'broken')
  assert not ray_hosts.contents_of(str(tmp_path)).digest


def test_differences():
  here = HostFacts(
    {'python': '3.11.7', 'ray': '2.52.1'},
    {'/a': Contents('1', '1 files'), '/b': Contents('2', '2 files')},
  )
  assert ray_hosts.differences(here, here) == ([], [])
  assert ray_hosts.differences(here, 'did not answer') == (
    ['did not answer'],
    [],
  )
  other = HostFacts(
    {'python': '3.11.7', 'ray': '2.40.0'},
    {'/a': Contents('', 'cannot be read (No)'), '/b': Contents('3', '0 files')},
  )
  assert ray_hosts.differences(here, other) == (
    ['has ray 2.40.0, not 2.52.1'],
    ["'/a' cannot be read (No)", "'/b' holds 0 files, not the 2 files here"],
  )
  # Only this host lacks it.
  assert ray_hosts.differences(other, here)[1] == [
    "'/b' holds 2 files, not the 0 files here"
  ]


def test_worker_whose_host_lacks_what_it_reads(tmp_path):
  path = str(tmp_path)
  ray_hosts.require_here({path: ray_hosts.contents_of(path)})
  with pytest.raises(
    FailedError,
    match=f"host .*: '{path}' holds 0 files, 0 bytes, not the 8 files here. "
    'Copy or mount it there under the same path',
  ):
    ray_hosts.require_here({path: Contents('1', '8 files')})


def test_facts_of_this_machine():
  found = ray_hosts.facts([])
  assert found.versions['tensorflow'] == '2.14.1'
  assert found.versions['tff_fedfish'].endswith(')')
