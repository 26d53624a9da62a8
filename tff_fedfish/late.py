"""Modules that are imported when something of them is used.

TensorFlow and TFF take ten seconds to import. A method is one file that needs
them only once it is built, so it imports them from here.
"""

import importlib
import types


class _Late(types.ModuleType):
  # A module: AutoGraph looks for its directives in modules only.

  def __getattr__(self, name):
    return getattr(importlib.import_module(self.__name__), name)


def module(name: str) -> types.ModuleType:
  """Returns a module that is imported when an attribute of it is read."""
  return _Late(name)


tf = module('tensorflow')
tff = module('tensorflow_federated')
