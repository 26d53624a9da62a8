"""One-shot methods: clients train once, and the server solves for a model.

Jhunjhunwala et al. (2024), "FedFisher: Leveraging Fisher information for
one-shot federated learning", algorithm 1. The process is FedAvg's. Clients
return their weights with a summary of their data (`uploads.py`,
`client_work.py`); a method's `solve` makes one model of all uploads. More than
one round is few-shot learning: the solution is the next round's start.
"""

import dataclasses
from typing import ClassVar, Literal

from tff_fedfish.errors import require
from tff_fedfish.fields import number, setting
from tff_fedfish.late import module
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.one_shot.uploads import (
  CLIENT_WEIGHT,
  SUMMARY,
  WEIGHTS,
  UploadKind,
  summary_models,
  uploaded_models,
)
from tff_fedfish.methods.parts import ClientCost, Traffic
from tff_fedfish.methods.settings import UNIT_STEP, settings_unlike
from tff_fedfish.rounds.client import KeptSlot

_client_work = module('tff_fedfish.methods.one_shot.client_work')

_EXPECTED = (
  # The solve sets the weights.
  *UNIT_STEP,
  ('client_work.keeps_optimizer_state', False),
  ('client_work.max_delta_norm', None),
  # Summaries read the data, without noise.
  ('local_privacy.clip_norm', 0.0),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneShot(Method):
  """A method whose server solves for a model over the clients' uploads."""

  example = 'fashion_mnist_one_shot'
  summary: ClassVar[str] = 'none'
  """`UploadKind.summary`. A property where it depends on the settings."""

  num_validation_rows: int = number(500, at_least=0)
  """Rows that the server draws, with replacement, from those of all training
  clients, and scores weights on. Not federated: a real server has none. 0:
  nothing is chosen by a score."""
  compression: Literal['none', 'paper'] = 'none'
  """'paper': uploads are quantized, and K-FAC factors and Gram matrices are of
  low rank, as in FedFisher's appendix C."""
  keeps_uploads: bool = setting(False, changes_results=False)
  """Whether RUN/uploads stays, for `fedfish solve`."""

  def solve(self, uploads, start, context):
    """Returns a `SolveResult`.

    Args:
      uploads: `Uploads` of the round.
      start: w_bar = sum p_i w_i, their mean.
      context: `SolveContext`.

    Returns:
      A deterministic function of these.
    """
    raise NotImplementedError

  def solve_models(self, config, num_clients):
    """Returns the models that the solve holds."""
    # An upload, w_bar, the solution, and its sums in float64.
    return 6

  def kept(self, num_clients):
    """Returns w_i, the trained weights and the summary; nothing is kept."""
    kind = self.upload()
    outputs = {
      CLIENT_WEIGHT: lambda client: client.weight,
      WEIGHTS: lambda client: _client_work.weights_of(client, kind),
      SUMMARY: lambda client: _client_work.summary_of(client, kind),
    }
    return {
      name: KeptSlot(initial=None, next=output)
      for name, output in outputs.items()
    }

  def build(self, model, **training):
    """Builds a one-shot method's client work, as a FedAvg process.

    The client outputs (`collect_client_outputs`) are <is_valid, client_weight,
    weights, summary>: w_i, and compressed the weights after local training and
    the tensors of `summary_shapes`, made of whole batches.

    `model` is a ModelSpec with a shape; `local_privacy` must be None.
    """
    is_private = training.get('local_privacy') is not None
    require(not is_private, 'local_privacy', 'None', 'a LocalPrivacy')
    if getattr(model, 'shape', None) is None:
      raise TypeError(
        '`model` must be a tff_fedfish.ModelSpec with a shape, found '
        f'{type(model).__name__}.'
      )
    return super().build(model, **training)

  def upload(self, config=None):
    return UploadKind(self.summary, self.compression)

  def traffic(self, config):
    kind = self.upload(config)
    return Traffic(uploaded_models(config.model_shape(), kind), 1)

  def cost(self, config):
    kind = self.upload(config)
    if kind.summary in ('none', 'class_counts'):
      return ClientCost()
    num_models = round(summary_models(config.model_shape(), kind))
    # The sums, and the summary that is made of them in one more pass; Gram
    # matrices need no gradients.
    num_passes = 1 / 3 if kind.summary == 'gram' else 1
    return ClientCost(2 * max(1, num_models), passes_after_training=num_passes)

  def problems(self, config):
    because = f'with algorithm.name {self.name!r}'
    return settings_unlike(config, _EXPECTED, because)
