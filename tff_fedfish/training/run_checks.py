"""Everything that a run would refuse later, found before anything is built.

`fedfish train` starts with this check, `--dry_run` is this check, and a sweep
makes it for each of its runs. TensorFlow is imported only where text must be
tokenized, to find out whether held-out clients are large enough.
"""

import collections
import contextlib
import dataclasses
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterable

from tff_fedfish import environment
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import unknown_tokens
from tff_fedfish.data.client_splits import ClientSplit
from tff_fedfish.data.tokenizers import Tokenizer
from tff_fedfish.errors import UserError, UserErrors
from tff_fedfish.evaluation import evaluation_clients
from tff_fedfish.methods import registry
from tff_fedfish.methods.one_shot.uploads import summary_models
from tff_fedfish.planning import disk, memory
from tff_fedfish.printing import format_bytes
from tff_fedfish.run import (
  corpus_identity,
  divergence,
  feature_files,
  metrics_files,
  round_metrics,
  run_directory,
  run_inputs,
  start_model,
)
from tff_fedfish.run.client_states import ClientStates
from tff_fedfish.run.corpus_identity import Corpus
from tff_fedfish.runtime import ray_pool


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckedRun:
  """Inputs and state that a run starts from."""

  history: divergence.RoundHistory
  """The rounds up to the checkpoint's."""
  checkpoint: pathlib.Path | None = None
  """The checkpoint to continue from; None: the run starts."""
  log: metrics_files.MetricsLog | None = None
  """The files of metrics, not yet opened. Like the next ones None where all
  rounds are done."""
  corpus: Corpus | None = None
  identity: corpus_identity.CorpusIdentity | None = None
  split: ClientSplit | None = None
  tokenizer: Tokenizer | None = None
  """None with images, too."""
  sample: evaluation_clients.ClientSample | None = None
  """The held-out clients that are scored while training."""
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
  stage: Callable[
    [str], contextlib.AbstractContextManager
  ] = contextlib.nullcontext,
) -> CheckedRun:
  """Opens and checks all that a run reads.

  Args:
    config: The run's config.
    workdir: Its directory, new or to continue. None: not checked.
    stage: Entered with the name of each part of the work, to show it.

  Raises:
    UserError: Naming what the run would refuse; a `UserErrors` where that is
      more than one thing.
  """
  errors = []

  @contextlib.contextmanager
  def problems():
    try:
      yield
    except UserError as error:
      errors.append(error)

  found, vocabulary = None, config.data.vocabulary
  corpus = split = identity = sample = tokenizer = log = start = None
  limit = config.training.max_non_finite_rounds

  is_new = workdir is None
  if workdir is not None:
    with problems():
      found = run_directory.checkpoint_to_resume(config, workdir)
      is_new = found is None
    kept_vocabulary = pathlib.Path(workdir) / run_directory.VOCABULARY_NAME
    if kept_vocabulary.exists():
      vocabulary = kept_vocabulary
  run = found.path.parent.parent if found else workdir or '.'
  history = divergence.RoundHistory(run, limit)
  if found and found.round_num == config.training.num_rounds:
    history = divergence.read_history(run, limit, found.round_num)
    return CheckedRun(checkpoint=found.path, history=history)
  if config.engine.kind == 'ray':
    with problems():
      ray_pool.require_ray(config.engine.ray_address)
  has_own_columns = has_vocabulary = False
  with problems():
    round_metrics.require_own_columns(config)
    has_own_columns = True
  # Builders of the package take all keywords, and import TensorFlow.
  if config.algorithm.name not in registry.BUILT_IN:
    with problems():
      config.method.require_builder(config)
  with problems(), stage('opening the corpus'):
    corpus = run_inputs.open_corpus(config, config.data.directory)
    run_inputs.require_tokens(config, corpus)
  if corpus is not None:
    # Not within a stage: it may show its own progress.
    split = run_inputs.split_corpus(config, corpus)
  if split is not None:
    for require in (
      run_inputs.require_groups,
      run_inputs.require_cohort,
      run_inputs.require_held_out_clients,
      run_inputs.require_downloads,
    ):
      with problems():
        require(config, split)
  with problems(), stage('reading the vocabulary'):
    tokenizer = run_inputs.open_tokenizer(config, vocabulary)
    has_vocabulary = True
  if is_new and has_vocabulary and config.training.start_from is not None:
    with problems(), stage('checking the model to start from'):
      start = start_model.check(config, tokenizer)
  if split is not None and has_vocabulary:
    with problems(), stage('choosing held-out clients'):
      identity = corpus_identity.identify(config, corpus)
      sample = _choose_sample(config, corpus, split, tokenizer)
  if identity is not None:
    with problems():
      if found:
        _require_same_inputs(config, found, identity, tokenizer, vocabulary)
        collections.deque(feature_files.verify(config, found), maxlen=0)
        if config.in_round(found.round_num).kept_slots:
          ClientStates(run, found.round_num).require_as_after(
            found.round_num, found.contents.get('client_states')
          )
      if has_own_columns:
        log = metrics_files.MetricsLog(
          run,
          found and found.round_num,
          metric_names=round_metrics.metric_names(config),
          timing_names=round_metrics.timing_names(config),
        )
      if found:
        history = divergence.read_history(run, limit, found.round_num)
  if len(errors) == 1:
    raise errors[0]
  if errors:
    raise UserErrors(errors)
  return CheckedRun(
    history=history,
    log=log,
    checkpoint=found and found.path,
    corpus=corpus,
    identity=identity,
    split=split,
    tokenizer=tokenizer,
    sample=sample,
    start=start,
  )


def print_warnings(
  config: TrainConfig,
  workdir: str | os.PathLike | None = None,
  *,
  split: ClientSplit | None = None,
  features: int | None = None,
) -> None:
  """Warns on standard error where memory or disk may not be enough.

  The split says how many clients may take part; None: not known. Features are
  as `planned_features` returns them.
  """
  parent = pathlib.Path(workdir or '.').resolve()
  # What is on the disk already takes no more of it.
  num_saved_bytes = sum(
    path.stat().st_size
    for name in ('checkpoints', 'client_states', 'uploads', 'feature*')
    for path in parent.glob(f'{name}/*/*')
  )
  states = planned_states(config, split)
  state_bytes = (states and states.peak_bytes) or 0
  feature_bytes = features or 0
  while not parent.exists():
    parent = parent.parent
  for what, where, needed, available in (
    (
      'memory',
      'this machine',
      memory.run_bytes(_with_whole_cohort(config, split)),
      environment.memory_bytes()['available'],
    ),
    (
      'disk for checkpoints'
      + ' and client states' * (states is not None)
      + ' and features' * (features is not None)
      + ' and uploads' * (config.method.solver is not None),
      f'the disk of {str(parent)!r}',
      checkpoint_bytes(config)
      + state_bytes
      + feature_bytes
      + _upload_bytes(config, split),
      shutil.disk_usage(parent).free + num_saved_bytes,
    ),
  ):
    if needed > available:
      print(
        f'fedfish: warning: the run takes up to {format_bytes(needed)} of '
        f'{what}, and {where} has {format_bytes(available)} available.',
        file=sys.stderr,
      )


def planned_states(
  config: TrainConfig, split: ClientSplit | None
) -> disk.StatesOnDisk | None:
  """Returns the size of the client states; None if there are none."""
  num_clients = None
  if split is not None:
    num_clients = len(run_inputs.training_clients(config, split))
  return disk.states_on_disk(config, num_clients)


def planned_features(config: TrainConfig, checked: CheckedRun) -> int | None:
  """Returns the size of the features; None if there are none, or not known."""
  if config.method.features is None or checked.split is None:
    return None
  return disk.feature_bytes(
    config,
    run_inputs.training_rows(config, checked.corpus, checked.tokenizer),
    run_inputs.training_clients(config, checked.split),
  )


def checkpoint_bytes(config: TrainConfig) -> int:
  """Returns the most that a run's checkpoints take on disk.

  That is while the last one is written beside those that are kept. Each holds
  the weights and the server optimizer's moments.
  """
  settings, num_rounds = config.checkpoints, config.training.num_rounds
  # Round 0 and the last, and those between.
  num_kept = 2
  if settings.every_num_rounds:
    num_kept += (num_rounds - 1) // settings.every_num_rounds
  if settings.keep_last:
    num_spaced = 0
    if settings.keep_every_num_rounds:
      num_spaced = num_rounds // settings.keep_every_num_rounds
    num_kept = min(num_kept, 2 + settings.keep_last + num_spaced)
  num_moments = config.server.step_cost().num_state_tensors
  model_bytes = sum(memory.tensor_bytes(config.model_shape()).values())
  return num_kept * (1 + num_moments) * model_bytes


def print_unknown_tokens(checked: CheckedRun) -> None:
  """Warns on standard error where the vocabulary does not fit the text.

  Judged by the held-out clients that are scored while training.
  """
  if checked.sample is None:
    return
  fraction = unknown_tokens.fraction_of(
    (halves.evaluation for _, halves in checked.sample.clients),
    checked.tokenizer,
  )
  if unknown_tokens.warning(fraction):
    print(f'fedfish: {unknown_tokens.describe(fraction)}', file=sys.stderr)


def problems_of(configs: Iterable[TrainConfig]) -> list[str]:
  """Returns what `check_run` refuses in any of several configs, a line each.

  Args:
    configs: Those that share all that is checked are checked once.
  """
  checked = {}
  for config in configs:
    is_own = config.algorithm.name not in registry.BUILT_IN
    key = (
      config.algorithm.name,
      # What a method of one's own reads is not known.
      is_own
      and (
        *(config.algorithm, config.client_work, config.server),
        config.local_privacy,
      ),
      config.data,
      config.partition,
      config.client_splits,
      config.cohorts,
      config.model,
      config.evaluation,
      config.seeds.split_seed,
      config.seeds.partition_seed,
      config.training.start_from,
      config.engine.kind,
      config.engine.ray_address,
      config.method.solver and config.algorithm,
      config.method.personal(config),
    )
    checked.setdefault(repr(key), config)
  lines = {}
  for config in checked.values():
    try:
      check_run(config)
    except UserError as error:
      lines |= dict.fromkeys(str(error).splitlines())
  return list(lines)


def _with_whole_cohort(config, split):
  """Returns a config whose cohort of all clients has its size, for a solver."""
  has_solver = config.method.solver is not None
  if split is None or config.cohort_size is not None or not has_solver:
    return config
  num_clients = len(run_inputs.training_clients(config, split))
  return config.with_values('cohorts', cohort_size=num_clients)


def _upload_bytes(config, split):
  """Returns the size of the uploads on disk, which are not compressed there."""
  if config.method.solver is None:
    return 0
  config, shape = _with_whole_cohort(config, split), config.model_shape()
  num_models = 1 + summary_models(shape, config.method.upload(config))
  is_kept = config.algorithm.keeps_uploads
  num_rounds = config.training.num_rounds if is_kept else 1
  model_bytes = sum(memory.tensor_bytes(shape).values())
  num_uploads = num_rounds * (config.cohort_size or 1)
  return int(num_uploads * num_models * model_bytes)


def _choose_sample(config, corpus, split, tokenizer):
  """Returns the held-out clients that are scored while training."""
  sample = evaluation_clients.choose_clients(
    split.held_out,
    run_inputs.client_rows(config, corpus, tokenizer),
    split_seed=config.seeds.split_seed,
    split_unit=config.evaluation.split_unit,
    max_clients=config.evaluation.num_clients,
    max_sequences=config.evaluation.max_sequences_per_client or None,
  )
  scores_held_out = config.method.personal(config) is None
  is_needed = scores_held_out and split.held_out
  if is_needed and config.evaluation.num_clients and not sample.clients:
    remedy, rows = 'Set', corpus.row_name
    if tokenizer is not None:
      remedy = 'Lower `--config.data.sequence_length`, or set'
      if config.evaluation.split_unit == 'documents':
        rows, remedy = 'documents', 'Group the corpus by a coarser key, or set'
    raise UserError(
      f'None of the {len(split.held_out)} held-out clients in '
      f'{config.data.directory!r} has the 4 {rows} that an '
      f'evaluation needs. {remedy} `--config.evaluation.num_clients=0`.'
    )
  return sample


def _require_same_inputs(config, checkpoint, identity, tokenizer, vocabulary):
  """Raises unless the run of a checkpoint can go on with these inputs."""
  if checkpoint.contents.get('corpus_fingerprint') != identity.fingerprint:
    raise UserError(
      f'The run was trained on another corpus than {config.data.directory!r} '
      'holds now. Name the corpus it was started with, or a new --workdir.'
    )
  run_directory.require_same_run(checkpoint, config, tokenizer, vocabulary)
