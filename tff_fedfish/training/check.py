"""Everything that a run would refuse later, found before anything is built.

`fedfish train` starts with this check, `--dry_run` is this check, and a sweep
makes it for each of its runs. TensorFlow is imported last, and only where text
must be tokenized to find out whether held-out clients are large enough.
"""

import collections
import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterable

from tff_fedfish.config import given
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.client_splits import ClientSplit
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.tokenizers import Tokenizer
from tff_fedfish.errors import UserError, UserErrors
from tff_fedfish.evaluation import clients as evaluation_clients
from tff_fedfish.methods import registry
from tff_fedfish.run import (
  checkpoints,
  client_data,
  columns,
  corpus_identity,
  divergence,
  features,
  run_directory,
  start_model,
  store,
)
from tff_fedfish.run.client_state import ClientStates
from tff_fedfish.run.corpus_identity import Corpus
from tff_fedfish.run.row_source import row_source
from tff_fedfish.run.tables import MetricsLog
from tff_fedfish.runtime import ray_pool
from tff_fedfish.training import cohort_checks

_Stage = Callable[[str], contextlib.AbstractContextManager]


@dataclasses.dataclass(kw_only=True)
class CheckedRun:
  """Inputs and state that a run starts from; steps of the check fill it."""

  history: divergence.RoundHistory
  """The rounds up to the checkpoint's."""
  checkpoint: pathlib.Path | None = None
  """The checkpoint to continue from; None: the run starts."""
  round_num: int = 0
  """Its round."""
  log: MetricsLog | None = None
  """The files of metrics, not yet opened. Like the next ones None where all
  rounds are done."""
  corpus: Corpus | None = None
  identity: corpus_identity.CorpusIdentity | None = None
  split: ClientSplit | None = None
  tokenizer: Tokenizer | None = None
  """None with images, too."""
  sample: evaluation_clients.ClientSample | None = None
  """The held-out clients that are scored while training."""
  validation: evaluation_clients.ClientSample | None = None
  """The same of the validation clients; empty if there are none."""
  start: start_model.StartModel | None = None
  """The model that a new run begins with; None: one that is drawn."""

  @property
  def is_finished(self) -> bool:
    """Whether all rounds are done."""
    return self.corpus is None


def check_run(
  config: TrainConfig,
  workdir: str | os.PathLike | None = None,
  *,
  stage: _Stage = contextlib.nullcontext,
) -> CheckedRun:
  """Opens and checks all that a run reads.

  Args:
    config: The run's config.
    workdir: Its directory, new or to continue. None: not checked.
    stage: Entered with the name of each part of the work, to show it.

  Raises:
    UserError: Naming what the run would refuse; a `UserErrors` where that is
      more than one thing.
    FailedError: If the run has stopped as it diverged, and would stop again.
  """
  check = _Check(config, workdir, stage)
  check.step(check.find_checkpoint)
  # With an error it is not known whether the run starts.
  is_new = check.run.checkpoint is None and not check.errors
  is_over = check.run.history.has_stopped_early
  if check.run.round_num < config.training.num_rounds and not is_over:
    check.step(check.require_engine)
    check.step(check.require_method)
    check.step(check.open_corpus, 'opening the corpus')
    if check.run.corpus is not None:
      check.step(check.split_clients, 'dividing the clients')
    check.step(check.open_vocabulary)
    if is_new and check.has_vocabulary and config.training.start_from:
      check.step(check.open_start, 'checking the model to start from')
    if check.has_vocabulary and check.run.split is not None:
      check.step(check.require_same_inputs)
      check.step(check.open_tables)
  check.require_no_errors()
  check.run.history.require_not_diverged()
  if not check.run.is_finished:
    if isinstance(check.run.corpus, GroupedCorpus):
      check.step(check.load_library, 'importing TensorFlow')
    if not check.errors:
      check.step(check.choose_sample, 'choosing held-out clients')
    check.require_no_errors()
  return check.run


class _Check:
  """Steps of a check; each fills `run`, or adds to `errors`."""

  def __init__(self, config, workdir, stage):
    self._config, self._workdir, self._stage = config, workdir, stage
    self._limit = config.training.max_non_finite_rounds
    self._checkpoint: checkpoints.Checkpoint | None = None
    self._vocabulary = config.data.vocabulary
    self.has_vocabulary = False
    self._has_columns = False
    self.errors: list[UserError] = []
    directory = '.' if workdir is None else workdir
    self._directory = pathlib.Path(directory)
    history = divergence.RoundHistory(
      directory, self._limit, patience=config.training.patience
    )
    self.run = CheckedRun(history=history)

  def step(self, check, name=None):
    with self._stage(name) if name else contextlib.nullcontext():
      try:
        check()
      except UserError as error:
        self.errors.append(error)

  def require_no_errors(self):
    if len(self.errors) == 1:
      raise self.errors[0]
    if self.errors:
      raise UserErrors(self.errors)

  def find_checkpoint(self):
    if self._workdir is None:
      return
    checkpoint = run_directory.checkpoint_to_resume(self._config, self._workdir)
    if checkpoint is None:
      return
    self._checkpoint = checkpoint
    self._directory = checkpoint.path.parents[1]
    self.run.checkpoint = checkpoint.path
    self.run.round_num = checkpoint.round_num
    self.run.history = divergence.read_history(
      *(self._directory, self._limit, checkpoint.round_num),
      patience=self._config.training.patience,
    )
    vocabulary = self._directory / run_directory.VOCABULARY_NAME
    # Its own copy; another one that is named must have the same content.
    if vocabulary.exists() and self._keeps_vocabulary():
      self._vocabulary = vocabulary

  def _keeps_vocabulary(self):
    path = self._directory / run_directory.CONFIG_NAME
    kept = given.read_values(path).settings.get('data.vocabulary')
    places = {
      given.place_of('data.vocabulary', typed)
      for typed in (kept, self._config.data.vocabulary)
    }
    return len(places) == 1

  def require_engine(self):
    if self._config.engine.kind == 'ray':
      ray_pool.require_ray(self._config.engine.ray_address)

  def require_method(self):
    columns.require_own_columns(self._config)
    self._has_columns = True

  def open_corpus(self):
    config, checkpoint = self._config, self._checkpoint
    corpus = client_data.open_corpus(config, config.data.directory)
    if checkpoint is not None:
      trained_on = checkpoint.contents.get('corpus_fingerprint')
      if trained_on != corpus.fingerprint:
        raise UserError(
          'The run was trained on another corpus than '
          f'{config.data.directory!r} holds now. Name the corpus it was '
          'started with, or a new --workdir.'
        )
    self.run.corpus = corpus
    row_source(config).require_tokens(corpus)

  def split_clients(self):
    split = row_source(self._config).split(self.run.corpus)
    self.run.split = split
    for require in (
      cohort_checks.require_groups,
      cohort_checks.require_cohort,
      cohort_checks.require_held_out_clients,
      cohort_checks.require_downloads,
    ):
      self.step(lambda require=require: require(self._config, split))

  def open_vocabulary(self):
    self.run.tokenizer = client_data.open_tokenizer(
      self._config, self._vocabulary
    )
    self.has_vocabulary = True
    if (corpus := self.run.corpus) is not None:
      source = row_source(self._config)
      self._rows = source.client_rows(corpus, self.run.tokenizer)

  def load_library(self):
    # The library may refuse the vocabulary; not in the midst of a round.
    self.run.tokenizer.encode_batch([''])

  def open_start(self):
    self.run.start = start_model.check(self._config, self.run.tokenizer)

  def choose_sample(self):
    config, run = self._config, self.run
    run.sample, run.validation = (
      evaluation_clients.choose_clients(
        client_ids,
        self._rows,
        split_seed=config.seeds.split_seed,
        split_unit=config.evaluation.split_unit,
        max_clients=config.evaluation.num_clients,
        max_sequences=config.evaluation.max_sequences_per_client or None,
      )
      for client_ids in (run.split.held_out, run.split.validation)
    )
    if config.method.personal(config) is None:
      _require_sample(config, run, 'held-out', run.split.held_out, run.sample)
      _require_sample(
        config, run, 'validation', run.split.validation, run.validation
      )

  def require_same_inputs(self):
    config, run, checkpoint = self._config, self.run, self._checkpoint
    run.identity = corpus_identity.identify(config, run.corpus)
    if checkpoint is None:
      return
    run_directory.require_same_run(
      checkpoint, config, run.tokenizer, self._vocabulary
    )
    collections.deque(features.verify(config, checkpoint), maxlen=0)
    if config.in_round(run.round_num).kept_models:
      states = ClientStates(self._directory, run.round_num)
      made = checkpoint.contents.get(store.CLIENT_STATES)
      states.require_as_after(run.round_num, made)

  def open_tables(self):
    # Without its columns a method of one's own was refused already.
    if self._has_columns:
      self.run.log = MetricsLog(
        self._directory,
        None if self._checkpoint is None else self.run.round_num,
        metric_names=columns.metric_names(self._config),
        timing_names=columns.timing_names(self._config),
      )


def _require_sample(config, run, kind, client_ids, sample):
  """Raises UserError where clients are to be scored but are too small."""
  if not config.evaluation.num_clients or not client_ids or sample.clients:
    return
  remedy, rows = 'Set', run.corpus.row_name
  if run.tokenizer is not None:
    remedy = 'Lower `--config.data.sequence_length`, or set'
    if config.evaluation.split_unit == 'documents':
      rows, remedy = 'documents', 'Group the corpus by a coarser key, or set'
  raise UserError(
    f'None of the {len(client_ids)} {kind} clients in '
    f'{config.data.directory!r} has the 4 {rows} that an '
    f'evaluation needs. {remedy} `--config.evaluation.num_clients=0`.'
  )


def problems_of(configs: Iterable[TrainConfig]) -> list[str]:
  """Returns what `check_run` refuses in any of several configs, a line each.

  Args:
    configs: Those that share all that is checked are checked once.
  """
  checked = {}
  for config in configs:
    key = [
      *(config.algorithm.name, config.method.personal(config)),
      *(config.data, config.partition, config.client_splits),
      *(config.cohorts, config.model, config.evaluation, config.engine),
      *(config.seeds.split_seed, config.seeds.partition_seed),
      config.training.start_from,
    ]
    is_own = config.algorithm.name not in registry.BUILT_IN
    # What a method of one's own reads is not known.
    if is_own or config.method.solve is not None:
      key += [config.algorithm, config.client_work, config.server]
      key += [config.local_privacy]
    checked.setdefault(repr(key), config)
  lines = {}
  for config in checked.values():
    try:
      check_run(config)
    except UserError as error:
      lines |= dict.fromkeys(str(error).splitlines())
  return list(lines)
