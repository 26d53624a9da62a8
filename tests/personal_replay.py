"""Runs of `personal_runs`, replayed in NumPy from the rows of their clients.

Of the package this takes clients' rows, cohorts and random generators; what
clients begin with, their training and their scores are computed here.
"""

import numpy as np

from tff_fedfish.data import randomness
from tff_fedfish.run import (
  checkpoints,
  client_data,
  cohorts,
  run_directory,
  tensor_files,
)
from tff_fedfish.run.client_state import ClientStates
from tff_fedfish.run.row_source import row_source


def initial_weights(run):
  """Returns the weights of round 0, (kernel, bias)."""
  path = checkpoints.path_of(run / 'checkpoints', 0)
  tensors = checkpoints.load_checkpoint(path).tensors
  return tuple(
    tensors[f'global_model_weights/trainable/{i}'].astype(np.float64)
    for i in range(2)
  )


def kept_of(run, client_id):
  """Returns what a client kept last, (kernel, bias) or its row by slot."""
  path = ClientStates(run).path_for(client_id, 10**8)
  names = ('model/0', 'model/1', 'baseline/0', 'baseline/1', 'affinity/0')
  found = tensor_files.read(path, names)
  return dict(
    model=(found['model/0'], found['model/1']),
    baseline=(found['baseline/0'], found['baseline/1']),
    affinity=found['affinity/0'],
  )


def scores(weights, rows):
  """Returns the mean cross-entropy and gradient of a linear classifier."""
  kernel, bias = weights
  x = rows.images.reshape(len(rows), -1) / 255.0
  logits = x @ kernel + bias
  logits -= logits.max(axis=1, keepdims=True)
  p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
  loss = -np.mean(np.log(p[np.arange(len(x)), rows.labels]))
  error = (p - np.eye(kernel.shape[1])[rows.labels]) / len(x)
  return loss, (x.T @ error, error.sum(axis=0))


def sgd(weights, rows, *, rate, batch_size, num_epochs):
  """Returns the weights after passes over the rows in their order."""
  for _ in range(num_epochs):
    for start in range(0, len(rows), batch_size):
      _, gradient = scores(
        weights, rows.select(slice(start, start + batch_size))
      )
      weights = tuple(
        w - rate * g for w, g in zip(weights, gradient, strict=True)
      )
  return weights


class Replay:
  """A run from its config and the weights of round 0.

  Attributes:
    config: The run's.
    participating: Its clients.
    rows: Their rows.
    kept: What each client keeps, by slot, and the round.
    num_downloads: Models that clients were sent, by round.
    num_helpful: How often another one's model had a weight above 0.
  """

  def __init__(self, run, corpus):
    self.config = run_directory.read_config(run)
    opened = client_data.open_corpus(self.config, corpus)
    split = row_source(self.config).split(opened)
    self.participating = row_source(self.config).training_clients(split)
    self.rows = row_source(self.config).with_test_rows(opened, opened)
    self.kept, self.num_downloads, self.num_helpful = {}, [0], 0
    self._initial = initial_weights(run)

  def run(self, num_rounds):
    """Replays the rounds."""
    work = self.config.client_work
    for round_num in range(1, num_rounds + 1):
      found, num_downloads = {}, 0
      for client in cohorts.cohort(
        self.config, self.participating, self.rows, round_num
      ):
        begun, affinity, num_sent = self.begin(client.client_id, round_num)
        model = sgd(
          begun,
          client.sequences(),
          rate=work.learning_rate,
          batch_size=work.local_batch_size,
          num_epochs=work.num_local_epochs,
        )
        num_downloads += num_sent
        found[client.client_id] = dict(
          model=model, baseline=begun, affinity=affinity, round_num=round_num
        )
      # All read what there was before.
      self.kept |= found
      self.num_downloads.append(num_downloads)

  def begin(self, client_id, round_num):
    """Returns where a client begins, its new affinity, models it is sent."""
    if client_id not in self.kept:
      return self._initial, np.zeros(len(self.participating)), 0
    own = self.kept[client_id]
    if self.config.algorithm.name == 'local_only':
      return own['model'], own['affinity'], 0
    rows = self.rows.validation_sequences(client_id)
    uploaded = [
      n
      for n, other in enumerate(self.participating)
      if other in self.kept and self.kept[other]['round_num'] == round_num - 1
    ]
    return self._mixed(client_id, rows, own, uploaded, round_num)

  def score(self, client_id, round_num):
    """Returns the loss on its test rows of what it would begin with."""
    weights, _, _ = self.begin(client_id, round_num + 1)
    return scores(weights, self.rows.test_sequences(client_id))[0]

  def _model(self, position):
    return self.kept[self.participating[position]]['model']

  def _mixed(self, client_id, rows, own, uploaded, round_num):
    settings = self.config.algorithm
    number = self.participating.index(client_id)
    pool = [n for n in uploaded if n != number]
    generator = randomness.generator(
      'downloads', self.config.seeds.cohort_seed, round_num, client_id
    )
    first, second = (generator.permutation(len(pool)) for _ in range(2))
    explored = [pool[i] for i in first]
    best = sorted((pool[i] for i in second), key=lambda n: -own['affinity'][n])
    epsilon = settings.epsilon - settings.epsilon_decay * (round_num - 1)
    chosen = []
    for _ in range(min(settings.num_downloads, len(pool))):
      order = explored if generator.random_sample() < epsilon else best
      chosen.append([n for n in order if n not in chosen][0])
    base, affinity = own['baseline'], own['affinity'].copy()
    base_loss, _ = scores(base, rows)
    theta, positive = [np.zeros_like(b) for b in base], 0.0
    for n in [number, *chosen]:
      difference = [m - b for m, b in zip(self._model(n), base, strict=True)]
      norm = np.sqrt(sum(np.sum(d**2) for d in difference))
      raw = (base_loss - scores(self._model(n), rows)[0]) / norm if norm else 0
      affinity[n] += raw
      self.num_helpful += raw > 0 and n != number
      positive += max(raw, 0)
      theta = [
        t + max(raw, 0) * d for t, d in zip(theta, difference, strict=True)
      ]
    begun = [
      b + (t / positive if positive else 0)
      for b, t in zip(base, theta, strict=True)
    ]
    return tuple(begun), affinity, len(chosen)
