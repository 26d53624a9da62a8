"""Declarations of the federated methods, without TensorFlow.

A method is one module here, with its builder and its METHOD, one line in
`registry.py` and one test file; or a module of your own. Nothing outside this
package spells a method's name.
"""

from tff_fedfish.fields import number
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.parts import ClientCost, Column, Slot, Traffic
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
