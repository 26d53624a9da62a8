"""Declarations of the federated methods, without TensorFlow.

A method is one declaration (`METHOD` in a module here, or in a package of your
own), one builder, one line in `registry.BUILT_IN` and one test file. Nothing
outside this package spells a method's name.
"""

from tff_fedfish.config_fields import number
from tff_fedfish.methods.method import (
  ClientCost,
  Column,
  Method,
  Slot,
  Traffic,
)
from tff_fedfish.methods.settings import AlgorithmConfig

__all__ = [
  'AlgorithmConfig',
  'ClientCost',
  'Column',
  'Method',
  'Slot',
  'Traffic',
  'number',
]
