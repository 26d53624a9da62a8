"""Finding where a command raises UserErrors, in a few lines of source."""

import textwrap

import raise_sites

_ERRORS = """
  class UserError(Exception):
    pass

  class Damaged(UserError):
    pass
"""
_COMMAND = """
  from tff_fedfish import corpus
  from tff_fedfish.corpus import Reader, unused

  def run(path: unused):
    reader = Reader(path)
    later(reader)
    for check in (corpus.check,):
      check(reader.size)

  def later(reader):
    reader.read()
    raise ValueError('no error of the user')

  def never():
    raise errors.UserError('nobody calls this')
"""
_CORPUS = """
  import functools
  import os

  from tff_fedfish import errors
  from tff_fedfish.errors import Damaged

  class _Base:
    def __init__(self, path):
      if not path:
        raise errors.UserError(f'{path} must not be empty.')

  class Reader(_Base):
    @property
    def size(self):
      raise Damaged('no size')

    def read(self):
      os.read(self)
      raise self._wrong('line')

    def _wrong(self, what):
      return _wrong(f'a {what}')

    def close(self):
      raise Damaged('nobody closes it')

  class Other:
    def read(self):
      raise Damaged('nobody makes one')

  def _wrong(what):
    return Damaged(what + ' is wrong')

  def check(size):
    return _CHECKS['small'](size)

  def _check_small(size, least):
    raise Damaged('too small')

  _CHECKS = {'small': functools.partial(_check_small, least=1)}

  def unused():
    raise Damaged('only in an annotation')
"""


def _find(root, **options):
  for name, text in (
    ('errors', _ERRORS),
    ('command', _COMMAND),
    ('corpus', _CORPUS),
  ):
    path = root / 'tff_fedfish' / f'{name}.py'
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(text))
  start = ('tff_fedfish.command', 'run')
  return raise_sites.find(start, root=root, **options)


def test_what_can_be_reached(tmp_path):
  assert {(site.function, site.message) for site in _find(tmp_path)} == {
    ('_Base.__init__', '{} must not be empty.'),
    ('Reader.size', 'no size'),
    ('Reader.read', 'line'),
    ('_check_small', 'too small'),
  }


def test_what_is_behind_a_stop(tmp_path):
  stops = {('tff_fedfish.command', 'later'), ('tff_fedfish.corpus', 'check')}
  found = _find(tmp_path, stops=stops)
  assert {site.function for site in found} == {'_Base.__init__', 'Reader.size'}


def test_a_site_names_file_line_function_and_message(tmp_path):
  (site,) = (s for s in _find(tmp_path) if s.function == 'Reader.size')
  line = _CORPUS.splitlines().index("      raise Damaged('no size')") + 1
  assert str(site) == f'tff_fedfish/corpus.py:{line} Reader.size: no size'
