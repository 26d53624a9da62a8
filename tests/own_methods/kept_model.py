"""A method of one's own: FedAvg whose clients keep the model they trained."""

from tff_fedfish.methods import AlgorithmConfig, Method, Slot


def build_kept_model(model, **training):
  """Builds the method; `training` goes to `compose`."""
  from tff_fedfish.rounds.compose import compose
  from tff_fedfish.rounds.kept import KeptSlot

  return compose(
    model,
    make_update=lambda client: client.model_delta(),
    kept_slots={
      'last_model': KeptSlot(
        initial=lambda trainable: trainable,
        next=lambda client: client.local.trainable,
      )
    },
    **training,
  )


METHOD = Method(
  name='kept_model',
  title='Kept model',
  summary='FedAvg whose clients keep the model they trained.',
  source='This test.',
  settings=AlgorithmConfig,
  builder='own_methods.kept_model:build_kept_model',
  slots=lambda config: (Slot('last_model', 1),),
)
