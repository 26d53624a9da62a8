"""Local training only: the comparison without any federation.

Every client goes on with the model that it trained last. All begin with the
server's initial weights; clients send nothing, and the server keeps these.
"""

import dataclasses

from tff_fedfish.methods.method import Method
from tff_fedfish.methods.parts import PersonalModels, Traffic
from tff_fedfish.methods.settings import settings_unlike
from tff_fedfish.rounds.client import LAST_MODEL

_EXPECTED = (
  # Nothing is sent that could be clipped, and the server takes no step.
  ('client_work.max_delta_norm', None),
  ('evaluation.barrier_every_num_rounds', 0),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalOnly(Method):
  """Every client trains a model of its own and sends nothing.

  All begin with the same initial weights.
  """

  title = 'Local models'
  source = 'the baseline of Zhang et al. (2021)'
  hue, hatch = '#888888', '||||'
  example = 'mnist_personal'
  takes_server_step = False
  make_update = None

  def begin(self, start):
    return start._replace(start_model=start.kept['model'])

  def kept(self, num_clients):
    return {'model': LAST_MODEL}

  def traffic(self, config):
    return Traffic(0, 0)

  def personal(self, config):
    return PersonalModels()

  def problems(self, config):
    because = f'with algorithm.name {self.name!r}'
    return settings_unlike(config, _EXPECTED, because)
