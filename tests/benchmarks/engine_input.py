"""Training on a corpus that ships with the project: its input, and its loss."""

import contextlib
import csv
import pathlib
import statistics
import sys
import time

from tff_fedfish import corpora

# Rounds at the end of a run whose losses are averaged: a quarter.
_MEASURED_SHARE = 0.25


class Input:
  """A cohort's way from the grouped corpus to batches, or its training."""

  def __init__(self, corpus: str, overrides: list[str], what: str):
    """Opens the corpus, as the trainer does.

    Args:
      corpus: A grouped corpus.
      overrides: Arguments of `fedfish train`.
      what: 'input' (tokenizes every client anew: the first time that a client
        is drawn), 'cached_input' (every client is in memory), or 'training'.
    """
    from tff_fedfish.config import load as config_loading
    from tff_fedfish.data import client_sequences
    from tff_fedfish.training import check

    self._config = config_loading.load_config(
      'demo', [*data_overrides(corpus), *overrides]
    )
    inputs = check.check_run(self._config)
    if what == 'input':
      client_sequences._CACHE_BYTES = 0
    self._client_rows = client_sequences.ClientSequences(
      inputs.corpus,
      inputs.tokenizer,
      sequence_length=self._config.data.sequence_length,
    )
    self._participating = inputs.split.participating
    self._what = what
    self._round_num = 0
    if what == 'training':
      from tff_fedfish.run import build
      from tff_fedfish.runtime.in_process_context import set_in_process_context

      set_in_process_context()
      self._process = build.build_learning_process(self._config)
      self._state = self._process.initialize()

  def turn(self) -> dict:
    """Returns the `seconds` and the `num_sequences` of the next round."""
    self._round_num += 1
    if self._what == 'cached_input':
      self._read()
    start = time.perf_counter()
    datasets = self._read()
    if self._what == 'training':
      start = time.perf_counter()
      output = self._process.next(self._state, datasets)
      self._state = output.state
      train = output.metrics['client_work']['train']
      num_sequences = int(train['num_sequences'])
    else:
      num_sequences = sum(
        len(batch['y'].numpy()) for dataset in datasets for batch in dataset
      )
    seconds = time.perf_counter() - start
    return {'seconds': seconds, 'num_sequences': num_sequences}

  def _read(self):
    from tff_fedfish.run import cohorts

    clients = cohorts.cohort(
      self._config, self._participating, self._client_rows, self._round_num
    )
    return [client.load().data for client in clients]


class Training:
  """A run of `fedfish train` with the demo's config."""

  def __init__(self, corpus: str, overrides: list[str]):
    """See `Input`."""
    self._arguments = [*data_overrides(corpus), *overrides]

  def turn(self, workdir: str) -> dict:
    """Trains.

    Args:
      workdir: The new run's directory.

    Returns:
      `seconds`, and the mean `loss` of the last quarter of the rounds.

    Raises:
      RuntimeError: If training fails.
    """
    from tff_fedfish.cli.main import main

    start = time.perf_counter()
    command = ['train', '--config', 'demo']
    with contextlib.redirect_stdout(sys.stderr):
      code = main([*command, '--workdir', workdir, *self._arguments])
    if code:
      raise RuntimeError(f'`fedfish train` ended with {code}.')
    with (pathlib.Path(workdir) / 'metrics.csv').open(newline='') as file:
      # Round 0 has no training.
      losses = [
        float(row['train/loss']) for row in list(csv.DictReader(file))[1:]
      ]
    num_measured = max(1, round(_MEASURED_SHARE * len(losses)))
    return {
      'seconds': time.perf_counter() - start,
      'loss': statistics.fmean(losses[-num_measured:]),
    }


def data_overrides(corpus: str) -> list[str]:
  """Returns the arguments that name a corpus and the demo's vocabulary."""
  return [
    f'--config.data.directory={corpus}',
    f'--config.data.vocabulary={corpora.demo_vocabulary()}',
  ]
