"""Rounds of a process whose clients keep tensors, fed with what they kept."""

import collections

import tensorflow as tf

import tff_fedfish


def argument(process, data, kept=None):
  """Returns a client's argument.

  Args:
    process: A `FederatedProcess`.
    data: Its batches.
    kept: Its last output. None: it takes part for the first time.
  """
  state = collections.OrderedDict()
  for slot, specs in process.kept_specs.items():
    zeros = tuple(tf.zeros(spec.shape, spec.dtype) for spec in specs)
    dataset = tf.data.Dataset.from_tensors(kept[slot] if kept else zeros)
    state[slot] = dataset if kept else dataset.take(0)
  return collections.OrderedDict(data=data, state=state)


class Rounds:
  """Runs rounds in our context.

  Attributes:
    state: The process's.
    kept: Last output by client.
    metrics: Of the last round.
  """

  def __init__(self, process):
    self.process = process
    self.state = process.initialize()
    self.kept = {}
    self.metrics = None

  def run(self, datasets, cohort=None):
    """Runs a round; returns the trainable weights after it.

    Args:
      datasets: Batches of all clients.
      cohort: Which of them take part; None: all.
    """
    cohort = range(len(datasets)) if cohort is None else cohort
    clients = [
      argument(self.process, datasets[c], self.kept.get(c)) for c in cohort
    ]
    with tff_fedfish.collect_client_outputs() as outputs:
      output = self.process.next(self.state, clients)
    self.state, self.metrics = output.state, output.metrics
    for index, client in enumerate(cohort):
      if outputs[index]['is_valid']:
        self.kept[client] = outputs[index]
    return self.process.get_model_weights(self.state).trainable
