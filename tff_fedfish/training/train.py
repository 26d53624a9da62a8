"""The training loop: rounds, scores, files; resumes by itself."""

import contextlib
import os
import pathlib
import resource
import sys
import time

from models.transformer_config import num_parameters
from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data.client_sequences import ClientSequences
from tff_fedfish.errors import UserError
from tff_fedfish.training import (
  checkpoints,
  cohort_data,
  round_metrics,
  run_directory,
  run_inputs,
)
from tff_fedfish.training.config import TrainConfig
from tff_fedfish.training.interruption import Interruption
from tff_fedfish.training.metrics_files import MetricsLog
from tff_fedfish.training.progress import Progress


def train(config: TrainConfig, workdir: str | os.PathLike) -> int:
  """Runs, or continues, the run of a config.

  Args:
    config: The config.
    workdir: The run's directory.

  Returns:
    0, or 128 + signal where SIGINT or SIGTERM ended the run after a round
    whose checkpoint is written.

  Raises:
    UserError: If config, corpus, vocabulary and directory do not go together.
    OSError: If a file of the run cannot be written, such as on a full disk.
  """
  workdir = pathlib.Path(workdir)
  with contextlib.ExitStack() as stack:
    if workdir.is_dir():
      stack.enter_context(run_directory.lock(workdir))
    checkpoint_path = run_directory.checkpoint_to_resume(config, workdir)
    if checkpoint_path is not None and _is_finished(config, checkpoint_path):
      print(f'The run in {str(workdir)!r} is finished.', file=sys.stderr)
      return 0
    kept_vocabulary = workdir / run_directory.VOCABULARY_NAME
    inputs = run_inputs.open_inputs(
      config,
      vocabulary=kept_vocabulary if kept_vocabulary.exists() else None,
    )
    run = _Run(config, workdir, inputs, checkpoint_path)
    if not workdir.is_dir():
      workdir.mkdir(parents=True)
      stack.enter_context(run_directory.lock(workdir))
    return run.run()


def _is_finished(config, checkpoint_path):
  checkpoint = checkpoints.load_checkpoint(checkpoint_path, (), verify=False)
  return checkpoint.round_num == config.training.num_rounds


class _Run:
  """What the rounds of one run share."""

  def __init__(self, config, workdir, inputs, checkpoint_path):
    # Late: errors of config and data must not wait for TensorFlow.
    from tff_fedfish.evaluation import held_out_sample
    from tff_fedfish.runtime.in_process_context import set_in_process_context
    from tff_fedfish.training import learning_setup

    set_in_process_context()
    self._config = config
    self._split = inputs.split
    self._fingerprint = inputs.corpus_fingerprint
    self._client_sequences = ClientSequences(
      inputs.corpus,
      inputs.tokenizer,
      sequence_length=config.data.sequence_length,
      drop_short_block=config.data.drop_short_block,
    )
    self._process = learning_setup.build_learning_process(config)
    self._state_type = self._process.initialize.type_signature.result
    self._evaluator = learning_setup.build_evaluator(config)
    # Before anything is written: the restored state may not fit.
    self._round, self._state = self._first_state(checkpoint_path)
    self._workdir = workdir
    self._tokenizer = inputs.tokenizer
    self._checkpoints = workdir / run_directory.CHECKPOINTS_NAME
    self._is_resumed = checkpoint_path is not None
    self._saved_round = self._round if self._is_resumed else None
    self._sample = held_out_sample.choose_clients(
      inputs.split.held_out,
      self._client_sequences,
      split_seed=config.seeds.split_seed,
      max_clients=config.evaluation.num_clients,
      max_sequences=config.evaluation.max_sequences_per_client or None,
    )
    if config.evaluation.num_clients and not self._sample.clients:
      raise UserError(
        f'None of the {len(inputs.split.held_out)} held-out clients in '
        f'{config.data.directory!r} has the 4 sequences that an evaluation '
        'needs. Lower `--config.data.sequence_length`, or set '
        '`--config.evaluation.num_clients=0`.'
      )

  def run(self) -> int:
    """Runs the rounds that are left."""
    num_rounds = self._config.training.num_rounds
    if not self._is_resumed:
      self._start()
    log = MetricsLog(
      self._workdir,
      self._round if self._is_resumed else None,
      metric_names=round_metrics.metric_names(self._config),
      timing_names=round_metrics.TIMING_NAMES,
    )
    if self._is_resumed:
      # Only now: a run that cannot be continued is left as it is.
      self._start()
    with log, Interruption() as interruption:
      with Progress('train', num_rounds, completed=self._round) as progress:
        if self._is_resumed:
          progress.write_line(f'Continuing after round {self._round}.')
        else:
          self._finish_round(log, {}, {})
        while self._round < num_rounds and not interruption.requested:
          self._round += 1
          metrics, timings = self._run_round()
          self._finish_round(log, metrics, timings)
          progress.advance(
            num_tokens=metrics['train/num_tokens'],
            loss=metrics['train/loss'],
          )
        if interruption.requested:
          self._save_checkpoint()
    if self._round == num_rounds:
      return 0
    if interruption.requested:
      print(
        f'fedfish: stopped after round {self._round} of {num_rounds}; the '
        'same command continues.',
        file=sys.stderr,
      )
    return interruption.exit_code

  def _start(self):
    run_directory.start(self._config, self._workdir, self._tokenizer)

  def _first_state(self, checkpoint_path):
    """Returns the round and state to continue from, or round 0's."""
    from tff_fedfish.training import server_state

    if checkpoint_path is None:
      return 0, self._process.initialize()
    checkpoint = checkpoints.load_checkpoint(checkpoint_path, verify=False)
    found = checkpoint.contents.get('corpus_fingerprint')
    if found != self._fingerprint:
      raise UserError(
        f'The run was trained on another corpus than '
        f'{self._config.data.directory!r} holds now. Name the corpus it was '
        'started with, or a new --workdir.'
      )
    state = server_state.from_tensors(
      checkpoint.tensors, self._state_type, checkpoint_path
    )
    return checkpoint.round_num, state

  def _run_round(self):
    config, start = self._config, time.monotonic()
    cohort_sequences = [
      sequences
      for _, sequences in cohort_data.cohort_sequences(
        config, self._split.participating, self._client_sequences, self._round
      )
    ]
    datasets = [
      sequences_lib.to_dataset(sequences, config.client_work.local_batch_size)
      for sequences in cohort_sequences
    ]
    data_seconds = time.monotonic() - start
    output = self._process.next(self._state, datasets)
    self._state = output.state
    metrics = round_metrics.train_metrics(output.metrics, cohort_sequences)
    seconds = time.monotonic() - start
    timings = {
      'seconds': seconds,
      'data_seconds': data_seconds,
      'tokens_per_second': metrics['train/num_tokens'] / seconds,
    }
    return metrics, timings

  def _finish_round(self, log, metrics, timings):
    """Scores the model where that is due, logs, and then saves."""
    config, start = self._config, time.monotonic()
    metrics = metrics | round_metrics.communication_metrics(
      self._round, config, num_parameters(config.transformer_config())
    )
    if self._sample.clients and self._is_due(
      config.evaluation.every_num_rounds
    ):
      from tff_fedfish.evaluation import held_out_sample

      weights = self._process.get_model_weights(self._state).trainable
      metrics |= held_out_sample.mean_score(
        self._evaluator, tuple(weights), self._sample
      )
      timings = timings | {'evaluation_seconds': time.monotonic() - start}
    timings = timings | {'peak_memory_bytes': peak_memory_bytes()}
    log.log_round(self._round, metrics, timings)
    if self._is_due(config.checkpoints.every_num_rounds):
      self._save_checkpoint()

  def _is_due(self, every_num_rounds):
    return (
      self._round in (0, self._config.training.num_rounds)
      or every_num_rounds
      and self._round % every_num_rounds == 0
    )

  def _save_checkpoint(self):
    from tff_fedfish.training import server_state

    if self._saved_round == self._round:
      return
    checkpoints.save_checkpoint(
      self._checkpoints,
      self._round,
      server_state.to_tensors(self._state, self._state_type),
      {
        'algorithm': self._config.algorithm.name,
        'corpus_fingerprint': self._fingerprint,
      },
    )
    checkpoints.remove_old_checkpoints(
      self._checkpoints, self._config.checkpoints.keep_last
    )
    self._saved_round = self._round


def peak_memory_bytes() -> int:
  """Returns the most memory this process has had resident."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
