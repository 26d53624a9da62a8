"""Federated language-model pretraining with function-space aggregation.

The public names below are imported when first used, so that
`import tff_fedfish` costs nothing.
"""

import importlib

from tff_fedfish.version import __version__

_HOMES = {
  'GroupedCorpus': 'tff_fedfish.data.grouped_corpus',
  'ModelSpec': 'models.functional_model',
  'build_fed_avg': 'tff_fedfish.algorithms.fed_avg',
  'build_fed_fish': 'tff_fedfish.algorithms.fed_fish',
  'build_fed_prox': 'tff_fedfish.algorithms.fed_prox',
  'build_fed_sgd': 'tff_fedfish.algorithms.fed_sgd',
  'build_language_model': 'models.functional_model',
  'set_in_process_context': 'tff_fedfish.runtime.in_process_context',
}

__all__ = ['__version__', *sorted(_HOMES)]


def __getattr__(name: str):
  if name not in _HOMES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__():
  return sorted({*globals(), *_HOMES})
