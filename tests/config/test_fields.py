"""Fields of a section: types, bounds, conditions, descriptions."""

import dataclasses
import math
import types
import typing
from typing import Literal

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tff_fedfish.config import schema
from tff_fedfish.fields import (
  SET,
  ConfigError,
  Section,
  docs_of,
  number,
  path,
  problems_of_reading,
  seed,
  setting,
  unread,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Section(Section, section='mine'):
  bits: Literal[32, 8, 1] = 32
  kind: Literal['a', 'b', None] = 'a'
  """The kind.

  In two lines.
  """
  size: int = number(at_least=1, below=10)
  rate: float | None = number(None, above=0, at_most=1)
  is_on: bool = False
  name: str | None = path(None, read_with={'kind': ('b', 'c')}, required=True)
  seed: int = seed(1)
  depth: int = number(2, read_with={'rate': SET})
  other: int = number(0, read_with={'data.corpus': ('mnist',)})


def _problems(**values):
  with pytest.raises(ConfigError) as error:
    _Section(**{'size': 1, **values})
  assert str(error.value) == (
    f'Invalid config: {"; ".join(error.value.problems)}.'
  )
  return [
    problem.replace('config.mine.', '') for problem in error.value.problems
  ]


@pytest.mark.parametrize(
  ('values', 'problem'),
  [
    (dict(kind='z'), "`kind` must be one of a, b, None, found 'z'"),
    (dict(kind=[]), '`kind` must be one of a, b, None, found []'),
    (dict(bits=8.0), '`bits` must be one of 32, 8, 1, found 8.0'),
    (dict(bits=True), '`bits` must be one of 32, 8, 1, found True'),
    (dict(size=0), '`size` must be at least 1 and below 10, found 0'),
    (
      dict(size=10**20),
      f'`size` must be at least 1 and below 10, found {10**20}',
    ),
    (dict(size=True), '`size` must be an int, found True'),
    (dict(size=2.0), '`size` must be an int, found 2.0'),
    (dict(size=None), '`size` must be an int, found None'),
    (dict(size=dataclasses.MISSING), '`size` is required'),
    (dict(rate='1'), "`rate` must be a number or None, found '1'"),
    (
      dict(rate=math.nan),
      '`rate` must be finite and at most 1 and above 0, found nan',
    ),
    (
      dict(rate=10**400),
      '`rate` must be finite and at most 1 and above 0, found inf',
    ),
    (dict(is_on=1), '`is_on` must be true or false, found 1'),
    (dict(kind='b', name=''), "`name` must be a non-empty string, found ''"),
    (dict(kind='b', name=4), '`name` must be a string or None, found 4'),
    (
      dict(seed=2**31),
      '`seed` must be at least 0 and below 2147483648, found 2147483648',
    ),
  ],
)
def test_wrong_value_is_named(values, problem):
  assert _problems(**values) == [problem]


def test_all_problems_at_once():
  names = [problem.split('`')[1] for problem in _problems(size=0, rate=-1)]
  assert names == ['size', 'rate']


def test_values_are_converted(monkeypatch):
  monkeypatch.setenv('HOME', '/home/me')
  section = _Section(size=1, kind='b', name='~/x', rate=1)
  assert (section.name, type(section.rate)) == ('/home/me/x', float)
  assert section.changed() == dict(size=1, kind='b', name='/home/me/x', rate=1)
  assert type(_Section(size=1, rate=np.float64(0.5)).rate) is float


@pytest.mark.parametrize(
  ('values', 'problems', 'unread_names'),
  [
    (dict(), [], {'name', 'depth'}),
    (
      # Choices that the section has not are not named.
      dict(name='x'),
      ["name` is read only with kind 'b', found 'x'; leave it out or at None"],
      {'name', 'depth'},
    ),
    (dict(kind='b'), ["name` is required with kind 'b'"], {'depth'}),
    (
      dict(depth=3),
      ['depth` is read only with rate set, found 3; leave it out or at 2'],
      {'name', 'depth'},
    ),
    (dict(other=1, rate=0.5), [], {'name'}),
  ],
)
def test_conditions(values, problems, unread_names):
  data = schema.DataConfig(corpus='mnist', directory='d')
  config = types.SimpleNamespace(data=data)
  section = _Section(size=1, **values)
  assert problems_of_reading(section, config) == (
    [f'`config.mine.{problem}' for problem in problems],
    [],
  )
  assert unread(section, config) == unread_names


def test_a_condition_on_another_section():
  data = schema.DataConfig(corpus='cifar10', directory='d')
  section, config = _Section(size=1, other=1), types.SimpleNamespace(data=data)
  assert problems_of_reading(section, config)[0] == [
    "`config.mine.other` is read only with data.corpus 'mnist', found 1; leave "
    'it out or at 0'
  ]


def test_descriptions():
  assert docs_of(_Section) == {'kind': 'The kind. In two lines.'}
  for section in dataclasses.fields(schema.TrainConfig):
    fields = {field.name for field in dataclasses.fields(section.type)}
    assert set(docs_of(section.type)) >= fields - {'section'}, section.name


@hypothesis.given(
  section=st.sampled_from(dataclasses.fields(schema.TrainConfig)),
  data=st.data(),
)
def test_whatever_is_given_is_accepted_or_named(section, data):
  wild = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
  )
  names = [field.name for field in dataclasses.fields(section.type)]
  given = {name: data.draw(wild, label=name) for name in names}
  try:
    built = section.type(**given)
  except ConfigError as error:
    assert '\n' not in str(error)
    assert {problem.split('`')[1] for problem in error.problems} <= {
      f'config.{section.name}.{name}' for name in names
    }
  else:
    for name, annotation in typing.get_type_hints(section.type).items():
      if annotation is float:
        assert math.isfinite(getattr(built, name))


def test_a_setting_without_default_is_required():
  @dataclasses.dataclass(frozen=True, kw_only=True)
  class Other(Section, section='other'):
    name: str = setting()

  assert Other(name='a').changed() == {'name': 'a'}
