"""TCT's convex rounds: SCAFFOLD in the form that sends one model.

Yu et al. (2022), "TCT", algorithm 2; the letters are those of `regression.py`.
Client k, with the rows' share q_k, keeps h_k and V_k:

  h_k <- h_k + (V - V_k) / (M eta)      0 in its first round, in which V_k is V
  V_k <- M steps from V with h_k
  V   <- sum_k q_k V_k

It requires all clients in every round, with the same M and eta.
"""

import collections

import numpy as np

from tff_fedfish.late import module, tf, tff
from tff_fedfish.methods.parts import Column, Features, Traffic
from tff_fedfish.methods.tct.settings import (
  TctSettings,
  convex_models,
  convex_shapes,
  feature_sizes,
)
from tff_fedfish.rounds.client import (
  LAST_MODEL,
  KeptSlot,
  LocalResult,
  MethodState,
)

_features = module('tff_fedfish.methods.tct.features')
_gradients = module('tff_fedfish.rounds.gradients')
_linearized = module('tff_fedfish.methods.tct.linearized')
_regression = module('tff_fedfish.methods.tct.regression')

_MAX_IMBALANCE = 1e-4
_ROUNDING = 0.01


def _basis_of(config, model, weights):
  """Returns a function from a client's features to its basis.

  Its entries are `vectors`, U, float64 [n, n], and `power_sums`, S_1 and S_2,
  float64 [2, n].
  """
  mean, std = (np.asarray(w) for w in tuple(weights.non_trainable)[-2:])
  num_steps = config.algorithm.num_convex_steps
  step_size = config.algorithm.convex_learning_rate

  def compute(rows):
    values, vectors = _regression.gram_basis(rows, mean, std)
    sums = _regression.power_sums(
      step_size * (1 / len(rows)) * values, num_steps
    )
    return {'vectors': vectors, 'power_sums': np.stack(sums)}

  return compute


class Convex(TctSettings):
  """SCAFFOLD on a regression on features, in full gradient steps.

  Clients' batches also have `vectors` and `power_sums` of `take_steps` in x.
  Metrics are those of the server's model before the round, and `imbalance`:
  |sum_k q_k h_k| / sum_k q_k |h_k|, which is 0 but for rounding.
  """

  features = Features(
    feature_sizes,
    'read',
    _basis_of,
    shapes=convex_shapes,
    learning_rate=lambda config: config.algorithm.convex_learning_rate,
  )

  def held_model(self, config, model):
    """Returns the linear classifier, which is given images."""
    mask = _features.mask_of(config)
    features = _features.build_features(model, mask)
    return _linearized.build_feature_classifier(model, features, len(mask))

  def begin_phase(self, config, process, state):
    """Returns the state before the regression, from that after the features.

    V is zero. Fixed are the network with a drawn head, and mean and standard
    deviation of its features, which the sums give.
    """
    sums = state.client_work['method']
    statistics = _regression.normalization(
      *(np.asarray(sums[name]) for name in ('num_rows', 'sums', 'square_sums'))
    )
    network = _features.network_of(config, state.global_model_weights)
    fixed = (*network, *(part.astype(np.float32) for part in statistics))
    state = process.initialize()
    trainable = process.get_model_weights(state).trainable
    zeros = tuple(np.zeros(w.shape, np.float32) for w in trainable)
    return process.set_model_weights(
      state, tff.learning.models.ModelWeights(zeros, fixed)
    )

  def build(self, model, **training):
    """Builds the rounds; the server's optimizer must be SGD with rate 1.

    `model` is as `linearized.build_feature_classifier` makes it. Clients take
    plain steps, whatever `client_optimizer` is; their weights are q_k.
    """
    kernel, _ = model.functional_model.initial_weights[0]
    reader = _linearized.reading(
      model,
      kernel.shape[0],
      vectors=tf.TensorSpec([None, None], tf.float64),
      power_sums=tf.TensorSpec([2, None], tf.float64),
    )
    sgd = tff.learning.optimizers.build_sgdm(self.convex_learning_rate)
    return super().build(reader, **training | {'client_optimizer': sgd})

  def local_work(self, start, dataset):
    mean, std = start.non_trainable[-2:]
    solution, metrics, count = _regression.take_steps(
      start.model,
      dataset,
      mean,
      std,
      start.trainable,
      self._correction(start),
      num_steps=self.num_convex_steps,
      step_size=self.convex_learning_rate,
    )
    return LocalResult(
      trainable=solution,
      metrics=metrics,
      num_examples=count,
      gradient_sums=None,
      mean_loss=tf.constant(0.0),
      dataset=dataset,
      optimizer_state=(),
      num_steps=tf.constant(self.num_convex_steps),
    )

  def _correction(self, start):
    """Returns h_k of the round."""
    return _gradients.plus_mean_gradient(
      start.kept['correction'],
      start.trainable,
      start.kept['last_local'],
      num_steps=self.num_convex_steps,
      rate=start.hparams['learning_rate'],
    )

  def kept(self, num_clients):
    """Returns h_k and V_k."""
    return {
      'correction': KeptSlot(
        initial=lambda trainable: tuple(map(tf.zeros_like, trainable)),
        next=lambda client: self._correction(client.start),
        num_models=convex_models,
      ),
      'last_local': LAST_MODEL._replace(num_models=convex_models),
    }

  def state(self, num_clients):
    """Returns a state with |sum_k q_k h_k| / sum_k q_k |h_k| of a round.

    To ignore rounding, 0.01 |V_k| / (M eta) is added to |h_k|.
    """
    step = self.num_convex_steps * self.convex_learning_rate

    def terms(client):
      h = client.kept_next['correction']
      norm, size = (
        tf.linalg.global_norm(tf.nest.flatten(part))
        for part in (h, client.local.trainable)
      )
      weighted = tf.nest.map_structure(lambda part: client.weight * part, h)
      return weighted, client.weight * (norm + _ROUNDING * size / step)

    def next_state(unused_state, sums, unused_counts):
      total, norms = sums
      norm = tf.linalg.global_norm(tf.nest.flatten(total))
      imbalance = tf.math.divide_no_nan(norm, norms)
      return collections.OrderedDict(imbalance=imbalance)

    return MethodState(
      initial=lambda specs: collections.OrderedDict(imbalance=0.0),
      terms=terms,
      next=next_state,
      reported_after=('imbalance',),
    )

  def traffic(self, config):
    return Traffic(convex_models(config), convex_models(config))

  def columns(self, config):
    return (
      Column('tct/train_accuracy', ('client_work', 'train', 'accuracy')),
      Column(
        'tct/correction_imbalance',
        ('client_work', 'imbalance'),
        at_most=_MAX_IMBALANCE,
      ),
    )
