"""Federated language-model pretraining with function-space aggregation.

The public names are imported when first used, so that `import tff_fedfish`
costs nothing. Every built-in method adds a function such as `build_fed_fish`;
the first one that is called imports TensorFlow Federated, some ten seconds.
"""

import importlib
import inspect

from tff_fedfish.version import __version__ as __version__

_HOMES = {
  'GroupedCorpus': 'tff_fedfish.data.grouped_corpus',
  'ModelSpec': 'models.functional_model',
  'build_language_model': 'models.functional_model',
  'collect_client_outputs': 'tff_fedfish.runtime.in_process_context',
  'set_in_process_context': 'tff_fedfish.runtime.in_process_context',
}


_PREFIX = 'build_'


def _builders():
  from tff_fedfish.methods import registry

  return {_PREFIX + name: method for name, method in registry.BUILT_IN.items()}


def _builder(method):
  """Returns a function that builds a method's learning process."""
  from tff_fedfish.methods.method import own_fields

  settings = [field.name for field in own_fields(method)]

  def build(model, **keywords):
    given = {n: keywords.pop(n) for n in settings if n in keywords}
    return method(**given).build(model, **keywords)

  build.__name__ = _PREFIX + method.name
  build.__doc__ = (
    f'{inspect.getdoc(method.build)}\n\nOf {method.title}; settings: '
    f'{", ".join(settings) or "none"}; further keywords: see '
    '`tff_fedfish.rounds.compose.compose`.'
  )
  return build


def __getattr__(name: str):
  if name == '__all__':
    return sorted({'__version__', *_HOMES, *_builders()})
  # Submodules are looked up here too, while they are imported, those that the
  # registry imports among them.
  if name.startswith(_PREFIX) and name not in _HOMES:
    if method := _builders().get(name):
      return globals().setdefault(name, _builder(method))
  elif name in _HOMES:
    return getattr(importlib.import_module(_HOMES[name]), name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__():
  return sorted({*globals(), *_HOMES, *_builders()})
