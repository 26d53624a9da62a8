"""Federated language-model pretraining with function-space aggregation.

The public names are imported when first used, so that `import tff_fedfish`
costs nothing. Every built-in method adds its builder, such as `build_fed_fish`;
the first one that is called for imports TensorFlow Federated, some ten seconds.
"""

import importlib

from tff_fedfish.version import __version__ as __version__

_HOMES = {
  'GroupedCorpus': 'tff_fedfish.data.grouped_corpus',
  'ModelSpec': 'models.functional_model',
  'build_language_model': 'models.functional_model',
  'collect_client_outputs': 'tff_fedfish.runtime.in_process_context',
  'set_in_process_context': 'tff_fedfish.runtime.in_process_context',
}


def _homes():
  from tff_fedfish.methods import registry

  builders = (method.builder for method in registry.BUILT_IN.values())
  pairs = (builder.partition(':') for builder in builders)
  return _HOMES | {name: module for module, _, name in pairs}


def __getattr__(name: str):
  if name == '__all__':
    return ['__version__', *sorted(_homes())]
  # Submodules are looked up here too, while they are imported, those that the
  # registry imports among them.
  home = (_homes() if name.startswith('build_') else _HOMES).get(name)
  if home is None:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(home), name)


def __dir__():
  return sorted({*globals(), *_homes()})
