"""The federated methods; declaring one imports no TensorFlow.

A method is one module here with one class, one line in `registry.py` and one
test file; or a module of your own. Nothing outside this package spells a
method's name.
"""

from tff_fedfish.fields import number, setting
from tff_fedfish.late import module, tf, tff
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.parts import ClientCost, Column, Traffic
from tff_fedfish.rounds.client import KeptSlot, MethodState

weighted_mean = module('tff_fedfish.rounds.weighted_mean')

__all__ = [
  'ClientCost',
  'Column',
  'KeptSlot',
  'Method',
  'MethodState',
  'Traffic',
  'number',
  'setting',
  'tf',
  'tff',
  'weighted_mean',
]
