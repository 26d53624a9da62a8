"""Files that patterns name, and their sizes."""

import os
import re

import buckets
import pytest

from pipelines.input_files import file_sizes, find_input_files
from pipelines.stack_overflow import site_of
from tff_fedfish.errors import UserError


@pytest.fixture(params=['local', 'store'])
def root(request, tmp_path, monkeypatch):
  """Returns the path of `tmp_path / 'b'`."""
  (tmp_path / 'b').mkdir()
  if request.param == 'local':
    return f'{tmp_path}/b'
  buckets.mount(monkeypatch, tmp_path)
  return 'bucket://b'


def test_files_by_patterns_and_their_sizes(root, tmp_path):
  for i, name in enumerate(('a-1', 'a-2', 'b-1')):
    (tmp_path / 'b' / name).write_bytes(bytes(i))
  paths = [f'{root}/{name}' for name in ('a-1', 'a-2', 'b-1')]
  assert find_input_files([f'{root}/?-*']) == paths
  assert find_input_files([f'{root}/a-*', f'{root}/b-1']) == paths
  assert file_sizes(paths[::-1]) == [2, 1, 0]
  with pytest.raises(
    UserError, match=r"none-\*' matches none\. Check the path"
  ):
    find_input_files([f'{root}/none-*'])
  with pytest.raises(UserError, match=f"'{root}/gone' is gone"):
    file_sizes([f'{root}/gone'])


def test_store_that_cannot_be_reached():
  with pytest.raises(
    UserError,
    match=r"`--input` must be a path that can be read, but 'none://x' is not "
    r"\('none://x': .*\)\. Check the name, and how the store is reached",
  ):
    find_input_files(['none://x'])


def test_each_file_once(tmp_path):
  (tmp_path / 'b').write_text('')
  (tmp_path / 'a').symlink_to('b')
  paths = [f'{tmp_path}/b', f'{tmp_path}/./b', f'{tmp_path}/?']
  assert find_input_files(paths) == [f'{tmp_path}/a']
  assert find_input_files(paths[:2]) == [f'{tmp_path}/b']


def test_directories_that_a_pattern_matches(tmp_path):
  (tmp_path / 'x' / 'y').mkdir(parents=True)
  (tmp_path / 'x' / 'y' / 'b').write_text('')
  (tmp_path / 'x' / 'a').write_text('')
  expected = [str(tmp_path / 'x' / 'a'), str(tmp_path / 'x' / 'y' / 'b')]
  assert find_input_files([f'{tmp_path}/x/**']) == expected
  assert find_input_files([f'{tmp_path}/x/*']) == expected[:1]
  with pytest.raises(UserError, match=re.escape("x/y*' matches none.")):
    find_input_files([f'{tmp_path}/x/y*'])


def test_links_that_lead_back_up(tmp_path, monkeypatch):
  posts = tmp_path / 'two' / 'posts' / 'a[1]'
  posts.mkdir(parents=True)
  (posts / 'a.jsonl').write_text('')
  (tmp_path / 'two' / 'b.jsonl').write_text('')
  (tmp_path / 'two' / '.hidden').mkdir()
  (tmp_path / 'two' / '.hidden' / 'c.jsonl').write_text('')
  (tmp_path / 'two' / 'here').symlink_to('.')
  (tmp_path / 'two' / 'posts' / 'up').symlink_to('..')
  expected = [f'{tmp_path}/two/b.jsonl', f'{posts}/a.jsonl']
  monkeypatch.chdir(tmp_path)
  for pattern in ('two/**/*.jsonl', '**', f'{tmp_path}/t*/**/**/?.jsonl'):
    assert find_input_files([pattern]) == expected


def test_paths_become_absolute(tmp_path, monkeypatch):
  site = tmp_path / 'beer.stackexchange.com'
  site.mkdir()
  (site / 'Posts.xml').write_text('')
  expected = [str(site / 'Posts.xml')]
  monkeypatch.chdir(site)
  for path in 'Posts.xml', './P*', '../beer.stackexchange.com/Posts.xml':
    assert find_input_files([path]) == expected
  monkeypatch.chdir(tmp_path)
  assert find_input_files(['**/*.xml']) == expected
  assert site_of(expected[0]) == 'beer.stackexchange.com'
  # An error shows what was typed.
  with pytest.raises(
    UserError,
    match=r"must name files, but 'beer.stackexchange.com' is a directory\. "
    r"Name files, such as 'DIR/\*\.json\.gz' or 'DIR/\*\.tfrecord-\*'\.$",
  ):
    find_input_files(['beer.stackexchange.com'])


def test_path_through_a_linked_directory(tmp_path, monkeypatch):
  (tmp_path / 'x' / 'y').mkdir(parents=True)
  (tmp_path / 'x' / 'a').write_text('')
  (tmp_path / 'link').symlink_to('x/y')
  monkeypatch.chdir(tmp_path)
  # Not tmp_path/a, which does not exist.
  assert find_input_files(['link/../a']) == [str(tmp_path / 'x' / 'a')]
  (tmp_path / 'a').write_text('')
  assert find_input_files(['link/../a']) == [str(tmp_path / 'x' / 'a')]
  # But a link keeps its own name.
  (tmp_path / 'to_x').symlink_to('x')
  assert find_input_files(['to_x/a']) == [str(tmp_path / 'to_x' / 'a')]


def test_name_that_is_no_text(tmp_path):
  name = os.fsdecode(b'caf\xe9.json')
  try:
    (tmp_path / name).write_text('')
  except OSError:
    pytest.skip('this file system takes only names in UTF-8')
  expected = (
    f"`--input` must have a name in UTF-8, found '{tmp_path}/caf\\xe9.json'. "
    'Rename it.'
  )
  for path in f'{tmp_path}/{name}', f'{tmp_path}/*':
    with pytest.raises(UserError, match=re.escape(expected)) as raised:
      find_input_files([path])
    # It can be printed.
    str(raised.value).encode()


def test_file_that_cannot_be_read(plain_directory):
  (plain_directory / 'a').touch(0)
  with pytest.raises(UserError, match='is not .Permission denied.'):
    find_input_files([str(plain_directory / 'a')])
