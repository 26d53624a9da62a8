"""Finds methods by name: built in, or named by their module.

A method outside this package is a module with one public subclass of `Method`.
It is found by the module's dotted name.
"""

import contextlib
import dataclasses
import difflib
import functools
import importlib
import os
import sys
import types
from collections.abc import Mapping

from tff_fedfish.errors import UserError
from tff_fedfish.methods import (
  fed_avg,
  fed_fish,
  fed_fomo,
  fed_prox,
  fed_sgd,
  local_only,
  moon,
  scaffold,
  tct,
)
from tff_fedfish.methods.method import Method, require_method
from tff_fedfish.methods.one_shot import (
  OneShot,
  dense,
  fed_fisher,
  fisher_merge,
  ot_fusion,
  pfnm,
  reg_mean,
)

# A method of the package is one line here.
_METHODS = (
  fed_avg.FedAvg,
  fed_fish.FedFish,
  fed_prox.FedProx,
  fed_sgd.FedSgd,
  moon.Moon,
  scaffold.Scaffold,
  tct.Tct,
  fed_fisher.FedFisher,
  fisher_merge.FisherMerge,
  reg_mean.RegMean,
  ot_fusion.OtFusion,
  pfnm.Pfnm,
  dense.Dense,
  local_only.LocalOnly,
  fed_fomo.FedFomo,
)
BUILT_IN: Mapping[str, type[Method]] = types.MappingProxyType(
  {method.name: method for method in _METHODS}
)
BASELINE = fed_avg.FedAvg
"""The method that reports compare others with."""
# Methods outside this package that were found, by `algorithm.name`.
_found: dict[str, type[Method]] = {}


def find(name: str) -> type[Method]:
  """Returns a method.

  Args:
    name: Value of `algorithm.name`: the name of a built-in method, or the
      dotted name of a method's module.

  Raises:
    UserError: If there is no such method, or its module cannot be imported or
      does not hold one.
  """
  if name in BUILT_IN:
    return BUILT_IN[name]
  if '.' not in name:
    near = difflib.get_close_matches(name.lower(), BUILT_IN, n=1)
    advice = f'; the nearest known one is {near[0]!r}' if near else ''
    raise UserError(
      f'`config.algorithm.name` must be one of {", ".join(BUILT_IN)}, or the '
      'module of a method of your own with its package (my_package.my_method), '
      f'found {name!r}{advice}.'
    )
  return _from_module(name)


def find_or_none(name: str) -> type[Method] | None:
  """Returns a method, or None where `find` raises."""
  try:
    return find(name)
  except UserError:
    return None


def settings_of(method: type[Method]) -> dict[str, dataclasses.Field]:
  """Returns the settings that a method reads, by name."""
  return {field.name: field for field in dataclasses.fields(method)}


def reads(method: type[Method], setting: str) -> bool:
  """Returns whether a method reads a setting, as 'section.setting'."""
  section, _, name = setting.partition('.')
  if section == Method.section:
    return name in settings_of(method)
  return section != 'server' or method.takes_server_step


def readers(setting: str) -> list[str]:
  """Returns the names of the methods that read a setting.

  Args:
    setting: As 'section.setting'. Methods that were found by their module
      before count too.
  """
  methods = BUILT_IN | _found
  return [name for name, m in methods.items() if reads(m, setting)]


@functools.cache
def _from_module(module_name):
  """Imports a module and returns its method."""
  typed = f'`config.algorithm.name` {module_name!r}'
  # An installed `fedfish` does not look there by itself, as `python -m` does.
  if not {'', os.getcwd()} & set(sys.path):
    sys.path.append(os.getcwd())
  try:
    # What a module prints is no part of a command's answer.
    with contextlib.redirect_stdout(sys.stderr):
      module = importlib.import_module(module_name)
    methods = _methods_in(module)
    for method in methods:
      require_method(method)
      if method.solve and not issubclass(method, OneShot):
        place = 'tff_fedfish.methods.one_shot.OneShot'
        raise ValueError(f'`solve` is one of {place}')
  except (Exception, SystemExit) as error:
    text = ' '.join(f'{type(error).__name__}: {error}'.split())
    raise UserError(
      f'{typed} must name an importable module, but importing '
      f'{module_name!r} raised {text.rstrip(".")}. Correct it, start `fedfish` '
      'in the directory that holds its package, or put that on PYTHONPATH.'
    ) from error
  if len(methods) != 1:
    raise UserError(
      f'{typed} must name a module that defines one public class derived from '
      'tff_fedfish.methods.Method, found '
      f'{", ".join(m.__name__ for m in methods) or "none"} in '
      f'{getattr(module, "__file__", module_name)!r}.'
    )
  (_found[module_name],) = methods
  return methods[0]


def _methods_in(module):
  return [
    value
    for name, value in vars(module).items()
    if isinstance(value, type)
    and issubclass(value, Method)
    and value.__module__ == module.__name__
    and not name.startswith('_')
  ]
