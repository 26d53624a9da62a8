"""A method of one's own whose runs begin with noise that the rounds divide."""

import dataclasses

from tff_fedfish.methods import Method, tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawnStart(Method):
  """FedAvg from weights that it draws itself."""

  title, source = 'Drawn start', 'None.'

  def held_model(self, config, model):
    """Returns the model with weights drawn by an operation that has a state."""
    num_rounds = config.training.num_rounds

    def draw():
      trainable, non_trainable = model.draw_initial_weights()
      drawn = [
        tf.random.normal(w.shape, seed=7) / num_rounds for w in trainable
      ]
      return tuple(drawn), non_trainable

    return dataclasses.replace(model, draw_initial_weights=draw)
