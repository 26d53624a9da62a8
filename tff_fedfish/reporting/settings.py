"""Configurations and environments side by side."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd


def published(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a config without `seeds.privacy_seed`.

  Whoever knows that seed can take the noise of DP-SGD away again.
  """
  return {
    section: {k: v for k, v in values.items() if k != 'privacy_seed'}
    if section == 'seeds'
    else values
    for section, values in config.items()
  }


def compare(objects: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
  """Returns all leaves of nested objects, one per run, as text.

  There is a row per dotted name, in the order of first appearance, and a column
  per object; '(not set)' where it does not have the name.
  """
  flat = [{n: _shown(v) for n, v in flatten(o).items()} for o in objects]
  return pd.DataFrame(flat, dtype=object).T.fillna('(not set)')


def flatten(item: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Returns {'a.b': value} for {'a': {'b': value}}; lists are values."""
  flat = {}
  for key, value in item.items():
    name = f'{prefix}{key}'
    if isinstance(value, Mapping) and value:
      flat.update(flatten(value, f'{name}.'))
    else:
      flat[name] = value
  return flat


def _shown(value: Any) -> str:
  if isinstance(value, str):
    return value
  return json.dumps(value, ensure_ascii=False)
