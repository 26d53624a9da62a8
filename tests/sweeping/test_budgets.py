"""Rounds under each budget, by hand."""

import types

import pytest

from tff_fedfish.errors import UserError
from tff_fedfish.sweeping import budgets, sweep_file


def _rounds(num_local_epochs, names=sweep_file.BUDGETS, **changes):
  values = {'base_rounds': 120, 'reference_local_epochs': 4} | changes
  training = types.SimpleNamespace(num_rounds=values.pop('base_rounds'))
  work = types.SimpleNamespace(num_local_epochs=num_local_epochs)
  base = types.SimpleNamespace(training=training, client_work=work)
  file = types.SimpleNamespace(base=base, budgets=names, **values)
  return budgets.rounds_by_budget(file, {})


def test_both_budgets():
  # 120 rounds; and 120 x 4 = 480 = 480 x 1 = 120 x 4 = 30 x 16.
  assert _rounds(1) == {120: ('fixed_rounds',), 480: ('fixed_compute',)}
  assert _rounds(16) == {120: ('fixed_rounds',), 30: ('fixed_compute',)}


def test_budgets_that_coincide_are_one_run():
  assert _rounds(4) == {120: ('fixed_rounds', 'fixed_compute')}


def test_one_budget():
  assert _rounds(16, ('fixed_rounds',)) == {120: ('fixed_rounds',)}
  assert _rounds(8, ('fixed_compute',)) == {60: ('fixed_compute',)}


def test_rounds_that_do_not_divide():
  with pytest.raises(UserError) as error:
    _rounds(7, base_rounds=50, reference_local_epochs=3)
  # 50 x 3 = 150 = 21 x 7 + 3.
  assert '50 x 3 = 150' in str(error.value)
  assert '7 does not divide 150. Choose another' in str(error.value)


@pytest.mark.parametrize(
  ('value', 'expected'),
  [
    ('fixed_compute', ('fixed_compute',)),
    (['fixed_compute', 'fixed_rounds'], ('fixed_rounds', 'fixed_compute')),
  ],
)
def test_names_of_budgets(value, expected):
  problems = []
  assert sweep_file.parse_budgets(value, problems) == expected
  assert not problems


@pytest.mark.parametrize('value', ['rounds', [], ['fixed_rounds', 'x'], 3])
def test_wrong_budgets(value):
  problems = []
  assert sweep_file.parse_budgets(value, problems) == ()
  assert problems == [
    "`budget` must be 'fixed_rounds' or 'fixed_compute', or a list of them, "
    f'found {value!r}'
  ]
