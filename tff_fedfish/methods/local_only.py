"""Local training only: the comparison without any federation.

Every client goes on with the model that it trained last. All begin with the
server's initial weights; clients send nothing, and the server keeps these.
"""

from typing import Any

from tff_fedfish.methods.method import Method
from tff_fedfish.methods.parts import PersonalModels, Slot, Traffic
from tff_fedfish.methods.settings import AlgorithmConfig, settings_unlike


def build_local_only(model: Any, **training: Any) -> Any:
  """Builds local training.

  Args:
    model: A FunctionalModel, or a ModelSpec for weights drawn in the graph.
    **training: See `rounds.compose.compose`. `server_optimizer` never steps,
      and the client weights weigh nothing.

  Returns:
    The learning process, with `personal_models`; metrics `client_work`,
    `aggregator`, `finalizer`.
  """
  from tff_fedfish.rounds.compose import compose
  from tff_fedfish.rounds.kept import KeptSlot

  slot = KeptSlot(
    initial=lambda trainable: trainable,
    next=lambda client: client.local.trainable,
  )
  return compose(
    model,
    begin=lambda unused_model, start: start._replace(
      own_model=start.kept['model']
    ),
    kept_slots={'model': slot},
    **training,
  )


def _problems(config):
  expected = (
    # Nothing is sent that could be clipped, and the server takes no step.
    ('client_work.max_delta_norm', None),
    ('evaluation.barrier_every_num_rounds', 0),
  )
  because = f'with algorithm.name {config.algorithm.name!r}'
  return settings_unlike(config, expected, because)


METHOD = Method(
  name='local_only',
  title='Local models',
  summary=(
    'Every client trains a model of its own, from the same initial weights, '
    'and sends nothing.'
  ),
  source='the baseline of Zhang et al. (2021)',
  settings=AlgorithmConfig,
  builder='tff_fedfish.methods.local_only:build_local_only',
  traffic=lambda config: Traffic(0, 0),
  slots=lambda config: (Slot('model', 1),),
  personal=lambda config: PersonalModels(),
  problems=_problems,
  example='mnist_personal',
  takes_server_step=False,
  hue='#888888',
  hatch='||||',
)
