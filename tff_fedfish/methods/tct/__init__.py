"""TCT: bootstrap a network, then solve its linearization with SCAFFOLD.

Yu et al. (2022), "TCT: Convexifying federated learning using bootstrapped
neural tangent kernels", algorithms 1 and 2, for classifiers of images. A run
has three phases:

  bootstrap  T1 rounds of FedAvg
  features   One round. Every client computes features z of its rows from the
             network's weights, and keeps them; their mean and standard
             deviation over all clients follow from sums (`features.py`).
  convex     All further rounds: SCAFFOLD regresses the classes on the
             normalized features (`regression.py`).

The rounds of the last two are in `feature_sums.py` and `convex.py`.
"""

import dataclasses

from tff_fedfish.methods.parts import Features, Phase
from tff_fedfish.methods.settings import (
  UNIT_STEP,
  image_problems,
  settings_unlike,
)
from tff_fedfish.methods.tct.convex import Convex
from tff_fedfish.methods.tct.feature_sums import FeatureSums
from tff_fedfish.methods.tct.settings import TctSettings, feature_sizes

_EXPECTED = (
  *UNIT_STEP,
  # Control variates are means of whole gradients of all clients.
  ('cohorts.cohort_size', None),
  ('client_work.max_delta_norm', None),
  ('client_work.keeps_optimizer_state', False),
  ('client_work.learning_rate_schedule', 'constant'),
  ('client_work.warmup_rounds', 0),
  # Sums and regressions are of rows as they are.
  ('local_privacy.clip_norm', 0.0),
  # It trains clients again, which are fed with other inputs then.
  ('evaluation.barrier_every_num_rounds', 0),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tct(TctSettings):
  """FedAvg for some rounds; then SCAFFOLD solves the linearized network.

  Images only: each client computes features of its rows once and keeps them.
  """

  example = 'fashion_mnist_tct'
  hue, hatch = '#117733', '..xx'
  features = Features(feature_sizes)

  def phases(self, config):
    settings, last = dataclasses.asdict(self), self.num_bootstrap_rounds
    return (
      Phase('bootstrap', 1, last, TctSettings(**settings)),
      Phase('features', last + 1, last + 1, FeatureSums(**settings)),
      Phase('convex', last + 2, None, Convex(**settings)),
    )

  def build(self, model, **training):
    """Builds the process of the bootstrap phase."""
    return self.phases(None)[0].method.build(model, **training)

  def traffic(self, config):
    return self.phases(config)[-1].method.traffic(config)

  def kept(self, num_clients):
    return self.phases(None)[-1].method.kept(num_clients)

  def columns(self, config):
    of_phases = (phase.method.columns(config) for phase in self.phases(config))
    return sum(of_phases, ())

  def problems(self, config):
    if problems := image_problems(config):
      return problems
    because = f'with algorithm.name {self.name!r}'
    return settings_unlike(config, _EXPECTED, because)
