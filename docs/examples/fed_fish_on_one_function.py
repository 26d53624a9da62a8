"""FedAvg and FedFish on one function: two clients, one round, ten seeds.

  python docs/examples/fed_fish_on_one_function.py one_function.png

Two perceptrons with equal initial weights fit y = sin(3x) + 0.3x on inputs that
overlap fully, in part, or not at all. FedAvg takes the mean of their weights;
FedFish weighs each by F, the sum over the client's inputs of (df / dtheta)^2.
The table has the Client-Server Barrier, the error of the global model minus
that of the clients' own; the picture has the functions of seed 0. After figures
1 and 2 of Dhawan et al. (2024). The last column is the barrier of a model that
predicts one number:

  | inputs | FedAvg | FedFish | FedFish - FedAvg | best constant |
  |---|---|---|---|---|
  | full overlap | 0.091 | 0.048 | -0.043 +- 0.062 | 0.441 |
  | partial overlap | 0.936 | 0.613 | -0.323 +- 0.210 | 0.461 |
  | no overlap | 0.968 | 0.428 | -0.540 +- 0.134 | 0.393 |
"""

import sys

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from tff_fedfish.data import randomness
from tff_fedfish.evaluation.intervals import t_half_width

SUPPORTS = {
  'full overlap': ((-2.0, 2.0), (-2.0, 2.0)),
  'partial overlap': ((-2.0, 0.5), (-0.5, 2.0)),
  'no overlap': ((-2.0, -0.5), (0.5, 2.0)),
}
LAYERS = ((1, 64), (64, 64), (64, 1))


def draw(seed):
  """Returns inputs, targets and initial weights of 3 x 2 clients, float32."""
  generators = [randomness.generator('toy_data', seed, i) for i in range(2)]
  places = np.array([g.uniform(size=100) for g in generators])
  noise = np.array([0.05 * g.standard_normal(100) for g in generators])
  ends = np.array(list(SUPPORTS.values()))
  x = ends[..., :1] + np.diff(ends) * places
  y = np.sin(3 * x) + 0.3 * x + noise
  g = randomness.generator('toy_weights', seed)
  theta = [g.uniform(-(i**-0.5), i**-0.5, (i + 1) * o) for i, o in LAYERS]
  theta = np.tile(np.concatenate(theta), [6, 1])
  return (np.float32(v).reshape(6, -1) for v in (x, y, theta))


def predict(theta, x):
  """Returns f(x), [models, examples]."""
  values = x[..., tf.newaxis]
  for i, o in LAYERS:
    kernel, bias, theta = tf.split(theta, [i * o, o, -1], axis=1)
    values = tf.tanh(values) if i > 1 else values
    values = values @ tf.reshape(kernel, [-1, i, o]) + bias[:, tf.newaxis]
  return values[..., 0]


@tf.function
def train(theta, x, y):
  """Returns the weights after 500 steps of Adam, and their Fisher diagonals."""
  first = second = tf.zeros_like(theta)
  for step in tf.range(1.0, 501.0):
    with tf.GradientTape() as tape:
      tape.watch(theta)
      loss = tf.reduce_sum(tf.reduce_mean((predict(theta, x) - y) ** 2, 1))
    gradient = tape.gradient(loss, theta)
    first = 0.9 * first + 0.1 * gradient
    second = 0.999 * second + 0.001 * gradient**2
    root = tf.sqrt(second / (1 - 0.999**step)) + 1e-7
    theta -= 0.005 * first / (1 - 0.9**step) / root
  with tf.GradientTape() as tape:
    tape.watch(theta)
    outputs = predict(theta, x)
  return theta, tf.reduce_sum(tape.batch_jacobian(outputs, theta) ** 2, 1)


def run_round(seed):
  """Returns the mean squared errors of each support, the data, the models."""
  x, y, theta = draw(seed)
  own, fishers = (v.numpy() for v in train(theta, x, y))
  models = {'own': own}
  for name, f in (('FedAvg', own**0), ('FedFish', fishers)):
    f, pairs = np.reshape(f, [3, 2, -1]) + 1e-12, own.reshape(3, 2, -1)
    models[name] = np.repeat((f * pairs).sum(1) / f.sum(1), 2, axis=0)
  found = {name: predict(model, x) for name, model in models.items()}
  found['constant'] = np.repeat(y.reshape(3, -1).mean(1), 2)[:, np.newaxis]
  errors = {n: np.reshape((f - y) ** 2, [3, -1]) for n, f in found.items()}
  return {n: e.mean(1) for n, e in errors.items()}, (x, y, models)


def plot(path, x, y, models):
  """Writes the picture."""
  grid = np.linspace(-2.2, 2.2, 221, dtype=np.float32)
  curves = {n: predict(m, np.tile(grid, [6, 1])) for n, m in models.items()}
  figure = Figure((10, 3.4), layout='constrained')
  for i, axes in enumerate(figure.subplots(1, 3, sharey=True)):
    axes.set(title=list(SUPPORTS)[i], xlabel='x', ylim=(-2.2, 2.2))
    for j, color in ((2 * i, '#009E73'), (2 * i + 1, '#CC79A7')):
      axes.plot(x[j], y[j], '.', color=color, alpha=0.4)
      axes.plot(
        grid, curves['own'][j], color=color, label=f'client {j % 2 + 1}'
      )
    for name, color in (('FedAvg', '#0072B2'), ('FedFish', '#D55E00')):
      axes.plot(grid, curves[name][2 * i], color=color, lw=2, label=name)
    axes.legend(loc='lower right', fontsize=8)
  figure.savefig(path)


def main(path):
  """Prints mean barriers and half of the 95 % interval, and draws."""
  rounds = [run_round(seed) for seed in range(10)]
  for i, support in enumerate(SUPPORTS):
    of = {n: np.array([e[n][i] for e, _ in rounds]) for n in rounds[0][0]}
    for name in ('FedAvg', 'FedFish', 'constant'):
      print(f'{support}, {name}: {(of[name] - of["own"]).mean():.3f}')
    less = of['FedFish'] - of['FedAvg']
    print(f'difference {less.mean():+.3f} ± {t_half_width(less):.3f}')
    print(f'below 0 in {(less < 0).sum()} of {len(less)} seeds')
  plot(path, *rounds[0][1])


if __name__ == '__main__':
  main(sys.argv[1])
