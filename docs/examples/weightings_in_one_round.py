"""One round of one cohort, its clients weighed in several ways.

  python docs/examples/weightings_in_one_round.py --config mnist_by_writer \
      --output runs/one_round.csv --config.cohorts.cohort_size=8 \
      --config.client_work.num_local_epochs=16

The clients train once, from the initial weights, and all weightings get the
same models. Each mean is scored on held-out clients after a step of 1 and after
its best step, which other held-out clients choose. The table has differences
from the plain mean of FedAvg; the CSV file has a row for each seed and
weighting. With `fisher_of='another'`, a control, the Fisher diagonal of the
next client weighs a delta, of which it knows nothing.

Other settings of FedFish's weights, or deltas of few bits, add a weighting "as
configured", whose clients train again: such as
`--config.algorithm.fisher_granularity=input --config.algorithm.fisher_mix=0.5
--config.aggregation.bits=4`.
"""

import argparse
import dataclasses

import numpy as np
import pandas as pd

import tff_fedfish
from tff_fedfish.config.load import load_config
from tff_fedfish.evaluation.clients import choose_clients
from tff_fedfish.evaluation.evaluator import build_evaluator
from tff_fedfish.evaluation.intervals import t_half_width
from tff_fedfish.printing import print_table
from tff_fedfish.run import build, client_data, cohorts
from tff_fedfish.run.row_source import row_source


@dataclasses.dataclass(frozen=True)
class Weighting:
  """How deltas are averaged: by w F^p, with a part s of the plain mean.

  `has_plain_length` gives each tensor its norm in the plain mean.
  """

  name: str
  fisher_power: float = 1.0
  plain_mean_fraction: float = 0.0
  fisher_of: str = 'own'
  has_plain_length: bool = False


PLAIN_MEAN = Weighting('plain mean', 0.0)
WEIGHTINGS = (
  PLAIN_MEAN,
  Weighting('FedFish'),
  Weighting("FedFish, another's F", fisher_of='another'),
  Weighting('FedFish, plain length', has_plain_length=True),
  Weighting('mix', 0.5, 0.5),
  Weighting('p = 1/4, s = 1/2', 0.25, 0.5),
)


@dataclasses.dataclass
class Cohort:
  """The trained clients of a round, the tensors of each as one vector.

  `weights` w_i are [clients, 1], `deltas` and `diagonals` float64 [clients,
  coordinates]; `sizes` are those of the tensors.
  """

  weights: np.ndarray
  deltas: np.ndarray
  diagonals: np.ndarray
  sizes: np.ndarray
  relative_floor: float

  def mean(self, weighting):
    """Returns the pseudo-gradient; the server subtracts it."""
    mean = (self.parts(weighting, self.relative_floor) * self.deltas).sum(0)
    if weighting.has_plain_length:
      wanted = self.tensor_means(self.mean(PLAIN_MEAN) ** 2)
      mean *= divide(wanted, self.tensor_means(mean**2)) ** 0.5
    return mean

  def parts(self, weighting, relative_floor):
    """Returns the part of each client in the mean of each coordinate."""
    plain = self.weights / self.weights.sum() * np.ones_like(self.deltas)
    if weighting.fisher_power == 0:
      return plain
    shift = -1 if weighting.fisher_of == 'another' else 0
    fisher = np.roll(self.diagonals, shift, 0) ** weighting.fisher_power
    floor = relative_floor * self.tensor_means(fisher)
    mass = self.weights * (fisher + floor)
    s = weighting.plain_mean_fraction
    return s * plain + (1 - s) * divide(mass, mass.sum(0))

  def effective_clients(self, weighting):
    """Returns 1 / sum a_i^2, its mean where there is mass; no floor."""
    squares = np.square(self.parts(weighting, 0.0)).sum(0)
    return np.mean(1 / squares[self.diagonals.any(0)])

  def half(self, i):
    """Returns a cohort of every second client."""
    names = ('weights', 'deltas', 'diagonals')
    return dataclasses.replace(self, **{n: vars(self)[n][i::2] for n in names})

  def tensor_means(self, vectors):
    """Returns the mean of the tensor that each coordinate is in."""
    starts = np.cumsum([0, *self.sizes[:-1]])
    sums = np.add.reduceat(vectors, starts, axis=-1)
    return np.repeat(sums / self.sizes, self.sizes, axis=-1)


def divide(numerator, denominator):
  """Returns the quotient; 0 where the denominator is."""
  return numerator / np.where(denominator > 0, denominator, np.inf)


def cosine(first, second):
  """Returns the cosine of the angle between two directions."""
  return first @ second / (np.linalg.norm(first) * np.linalg.norm(second))


def flat(tensors):
  """Returns all entries as one vector."""
  return np.concatenate([np.ravel(t).astype(np.float64) for t in tensors])


def train_cohort(config, clients):
  """Returns the initial weights, and the cohort of round 1 after training."""
  process = build.build_learning_process(config)
  state = process.initialize()
  start = [np.asarray(w) for w in process.get_model_weights(state).trainable]
  trained = process.trained_models(state, clients)
  # Others have no data, or an update that is not finite.
  trained = [client for client in trained if client['client_weight'] > 0]

  def diagonal(client):
    # Elements of a unit share one number.
    pairs = zip(client['update'].a, start, strict=True)
    return flat(np.broadcast_to(fisher, w.shape) for fisher, w in pairs)

  return start, Cohort(
    np.array([[float(c['client_weight'])] for c in trained]),
    np.stack([flat(c['update'].delta) for c in trained]),
    np.stack([diagonal(c) for c in trained]),
    np.array([tensor.size for tensor in start]),
    config.algorithm.relative_floor,
  )


def as_printed(config):
  """Returns the config whose clients send exact deltas and F of elements."""
  config = config.with_values(
    'algorithm',
    fisher_power=1.0,
    fisher_granularity='element',
    fisher_mix=None,
    fisher_cap=None,
    plain_mean_fraction=0.0,
    plain_mean_tensors='none',
  )
  return config.with_values('aggregation', bits=32)


def held_out_rows(config, held_out, rows, arguments):
  """Returns the rows of each validation client, and of each scored one."""
  first, others = arguments.num_clients
  sample = choose_clients(
    held_out,
    rows,
    split_seed=config.seeds.split_seed,
    split_unit=config.evaluation.split_unit,
    max_clients=first + others,
    max_sequences=arguments.max_rows,
  )
  found = [halves.evaluation for _, halves in sample.clients]
  if len(found) < first + others:
    raise SystemExit(f'Only {len(found)} held-out clients have enough rows.')
  return found[:first], found[first:]


def best_step(loss):
  """Returns the step with the smallest loss: doubled from 1, else halved."""
  best, lowest = 1.0, loss(1.0)
  for factor in (2.0, 0.5):
    step = factor
    while 1 / 64 <= step <= 64 and (found := loss(step)) < lowest:
      best, lowest, step = step, found, step * factor
    if best > 1:
      break
  return best


def compare(config, arguments):
  """Yields a row for each weighting, with the seeds of a config."""
  corpus = client_data.open_corpus(config, config.data.directory)
  tokenizer = client_data.open_tokenizer(config, config.data.vocabulary)
  split = row_source(config).split(corpus)
  rows = row_source(config).training_rows(corpus, tokenizer)
  validation, scored = held_out_rows(config, split.held_out, rows, arguments)
  participating = row_source(config).training_clients(split)

  def trained(config):
    clients = cohorts.cohort(config, participating, rows, 1)
    return train_cohort(config, clients)

  start, cohort = trained(as_printed(config))
  weighed = [(weighting, cohort) for weighting in WEIGHTINGS]
  # FedAvg's mean is among them.
  if config != as_printed(config) and config.algorithm.weighs_coordinates:
    s = config.algorithm.plain_mean_fraction
    own = Weighting('as configured', plain_mean_fraction=s)
    weighed.append((own, trained(config)[1]))
  evaluator = build_evaluator(config)

  def loss(mean, step, clients):
    vectors = np.split(flat(start) - step * mean, np.cumsum(cohort.sizes)[:-1])
    tensors = tuple(
      np.float32(vector).reshape(like.shape)
      for vector, like in zip(vectors, start, strict=True)
    )
    scores = [evaluator.score(tensors, rows) for rows in clients]
    counts = [score.num_tokens for score in scores]
    found = np.average([score.loss for score in scores], weights=counts)
    return found if np.isfinite(found) else np.inf

  plain = cohort.mean(PLAIN_MEAN)
  for weighting, cohort in weighed:
    halves, mean = (cohort.half(0), cohort.half(1)), cohort.mean(weighting)
    step = best_step(lambda step, mean=mean: loss(mean, step, validation))
    yield {
      'seed': config.seeds.cohort_seed,
      'weighting': weighting.name,
      'start_loss': loss(mean, 0, scored),
      'loss': loss(mean, 1, scored),
      'best_step': step,
      'best_loss': loss(mean, step, scored),
      'cosine': cosine(mean, plain),
      'norm_ratio': np.linalg.norm(mean) / np.linalg.norm(plain),
      'split_half_cosine': cosine(*(half.mean(weighting) for half in halves)),
      'effective_clients': cohort.effective_clients(weighting),
    }


def print_differences(table):
  """Prints means over seeds, with half of their 95 % interval."""
  names = table['weighting'].unique()
  plain, fish, another, *_ = names
  losses = table.pivot(index='seed', columns='weighting')

  def difference(name, other, column='best_loss'):
    values = losses[column][name] - losses[column][other]
    half_width = t_half_width(values)
    text = f'{values.mean():+.4f}'
    return text if half_width is None else f'{text} ± {half_width:.4f}'

  print_table(
    'Held-out loss minus that of the plain mean, nats',
    ['weighting', 'step 1', 'best step'],
    [
      [name, *(difference(name, plain, c) for c in ('loss', 'best_loss'))]
      for name in names
    ],
  )
  print(f'{fish} minus {another}: {difference(fish, another)} nats.')


def main(argv=None):
  """Compares the weightings, and writes a row for each."""
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument('--config', required=True)
  parser.add_argument('--output', required=True)
  parser.add_argument('--seeds', nargs='+', type=int, default=[1, 2, 3])
  parser.add_argument('--num_clients', nargs=2, type=int, default=[32, 64])
  parser.add_argument('--max_rows', type=int)
  arguments, overrides = parser.parse_known_args(argv)
  tff_fedfish.set_in_process_context()
  rows = []
  for seed in arguments.seeds:
    names = ('model_seed', 'cohort_seed', 'shuffle_seed')
    seeds = [f'--config.seeds.{name}={seed}' for name in names]
    rows += compare(load_config(arguments.config, overrides + seeds), arguments)
  table = pd.DataFrame(rows)
  table.to_csv(arguments.output, index=False)
  print_differences(table)


if __name__ == '__main__':
  main()
