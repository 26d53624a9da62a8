"""Measurements of an evaluation, and everything that it refuses.

What can be refused without the vocabulary, whose opening imports TensorFlow, is
refused before.
"""

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from tff_fedfish import files
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import client_splits
from tff_fedfish.data.client_splits import ClientSplit
from tff_fedfish.data.tokenizers import Tokenizer
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.options import OWN_ROWS, EvaluationOptions
from tff_fedfish.huggingface import pretrained
from tff_fedfish.progress import stage
from tff_fedfish.run import (
  best_round,
  checkpoints,
  client_data,
  client_state,
  corpus_identity,
  divergence,
  pretrained_run,
  run_directory,
)
from tff_fedfish.run.checkpoints import Checkpoint
from tff_fedfish.run.client_state import ClientStates
from tff_fedfish.run.corpus_identity import Corpus
from tff_fedfish.run.row_source import row_source


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """An evaluation in which nothing was found wrong."""

  config: TrainConfig
  """The run's, in the phase of the checkpoint."""
  options: EvaluationOptions
  data: str | os.PathLike
  """Path of the corpus, for errors."""
  output: pathlib.Path
  run: pathlib.Path | None
  """None: the checkpoint is a directory of transformers."""
  checkpoint: Checkpoint
  """Without tensors if there is a run."""
  tokenizer: Tokenizer | None
  """None with images."""
  corpus: Corpus
  split: ClientSplit | None
  """Clients of the run's own corpus; None: of another one."""
  client_ids: Sequence[bytes] | None
  """Clients that may be scored by halves; None: by rows of their own."""
  states: ClientStates | None
  """Tensors that clients kept, where they are read."""
  facts: dict[str, Any]
  """Fields of `Summary`: kind, corpus, corpus_identity, checkpoint."""

  @property
  def sequence_length(self) -> int | None:
    """Tokens of a sequence; None with images."""
    return self.options.sequence_length or self.config.data.sequence_length

  @property
  def split_unit(self) -> str | None:
    """Unit in which text is halved; None with images."""
    if self.config.data.holds_images:
      return None
    return self.options.split_unit or self.config.evaluation.split_unit

  @property
  def scores_choosers(self) -> bool:
    """Whether the round was chosen on the clients or rows to be scored."""
    facts, is_own = self.facts, self.split is not None
    chosen_on = facts['checkpoint'].get('chosen_on', '')
    # 'held_out_clients' or 'own_test_rows'; validation clients are no kind.
    return is_own and chosen_on.startswith(facts['kind'])

  @property
  def learning_rate(self) -> float:
    """Learning rate of the fine-tuning."""
    rate = self.options.learning_rate
    return self.config.fine_tuning_rate if rate is None else rate


def plan_evaluation(
  checkpoint: str | os.PathLike,
  data: str | os.PathLike,
  output: str | os.PathLike | None,
  options: EvaluationOptions,
) -> Plan:
  """Opens checkpoint and corpus; see `evaluate.evaluate`."""
  typed, run, is_own = checkpoint, None, False
  if pretrained.is_pretrained(checkpoint):
    if output is None:
      raise UserError(
        f'`--output` is required with {str(checkpoint)!r}, a model without a '
        'run. Name a new directory.'
      )
    for name in ('barrier', 'client_split'):
      if getattr(options, name) != getattr(EvaluationOptions(), name):
        raise UserError(
          f'`--{name}` is not available for {str(checkpoint)!r}, a model '
          'without a run. Leave it out.'
        )
    config = pretrained_run.config_of(checkpoint, data)
  else:
    checkpoint = divergence.resolve_checkpoint(checkpoint)
    run = checkpoint.parent.parent
    config = run_directory.read_config(run)
    name = pathlib.Path(data).resolve().name
    # Beside that of the last round.
    name += '_best' * (best_round.run_of(typed) is not None)
    output = output or run / 'evaluations' / name
  with stage('opening the corpus'):
    corpus = client_data.open_corpus(config, data)
  output = files.require_usable_output(output, '--output')
  identity, config_of_run = corpus_identity.identify(config, corpus), config
  if run is not None:
    opened = checkpoints.load_checkpoint(checkpoint, None, verify=False)
    config = config.in_round(opened.round_num)
    trained_on = opened.contents.get('corpus_fingerprint')
    is_own = trained_on == identity.fingerprint
  require_measurable(config, options, data, is_own_corpus=is_own)
  split = row_source(config).split(corpus) if is_own else None
  client_ids = _client_ids(config, options, corpus, split)
  kind = _kind(config, options, run, identity, is_own)
  states = run and _states(config, options, opened)
  with stage('opening the checkpoint'):
    open_checkpoint = (client_data if run else pretrained_run).open_checkpoint
    opened, tokenizer = open_checkpoint(config_of_run, checkpoint)
  return Plan(
    config=config,
    options=options,
    data=data,
    output=output,
    run=run,
    checkpoint=opened,
    tokenizer=tokenizer,
    corpus=corpus,
    split=split,
    client_ids=client_ids,
    states=states,
    facts=dict(
      kind=kind,
      corpus=identity.label(data),
      corpus_identity=identity,
      checkpoint={
        'round': opened.round_num,
        **best_round.choice(typed),
        **_directory(run, typed),
      },
    ),
  )


def require_measurable(
  config: TrainConfig,
  options: EvaluationOptions,
  data: str | os.PathLike,
  *,
  is_own_corpus: bool,
) -> None:
  """Checks options against the config of the run that is evaluated.

  `data` is the path of the corpus, for errors.

  Raises:
    UserError: For the first option that the run cannot be measured with.
  """
  needs_own = (
    "needs the run's own corpus as `--data`, but "
    f"{str(data)!r} is another one. Name the run's."
  )
  is_held_out = is_own_corpus and options.client_split == 'held_out'
  if options.held_out_from and not is_held_out:
    raise UserError(
      "`--held_out_from` is read only with the run's own corpus and "
      "`--client_split` 'held_out'. Leave it out."
    )
  if options.barrier:
    is_replayed = config.method.solve is None and len(config.phases) <= 1
    if not is_replayed or config.method.personal(config) is not None:
      raise UserError(
        f'`--barrier` is not available for {config.algorithm.name!r}. Leave it '
        'out.'
      )
    if not is_own_corpus:
      raise UserError(f'`--barrier` {needs_own}')
  if part := _own_rows(config, options):
    reader = f'`--client_split` {part!r}'
    if options.client_split != part:
      reader = f'{config.algorithm.name!r} (personal models)'
    if not is_own_corpus:
      raise UserError(f'{reader} {needs_own}')
    _require_own_rows(config, options, part, reader)
  elif not is_own_corpus and options.client_split != 'held_out':
    raise UserError(f'`--client_split` {options.client_split!r} {needs_own}')
  # None: the corpus holds clients out itself.
  elif is_own_corpus and config.client_splits.held_out_fraction == 0:
    if options.client_split == 'held_out':
      _raise_no_clients(config, options)
  longest, wanted = config.data.sequence_length, options.sequence_length
  if wanted is not None and (longest is None or wanted > longest):
    most = 'left out with images'
    if longest is not None:
      most = f'at most {longest}, as in training'
    raise UserError(f'`--sequence_length` must be {most}, found {wanted}.')


def _own_rows(config: TrainConfig, options: EvaluationOptions) -> str | None:
  """Returns which of their own rows clients are scored on.

  'own_test' or 'own_validation'. None: whole clients are scored, by halves.
  """
  if options.client_split in OWN_ROWS:
    return options.client_split
  return 'own_test' if config.method.personal(config) is not None else None


def _require_own_rows(config, options, part, reader):
  """Raises UserError where clients cannot be scored on rows of their own."""
  default = EvaluationOptions()
  read = ('client_split', 'max_clients', 'max_sequences_per_client')
  for field in dataclasses.fields(EvaluationOptions):
    value = getattr(options, field.name)
    allowed = (getattr(default, field.name), (0.0,))
    if field.name not in read and value not in allowed:
      raise UserError(
        f'`--{field.name}` is not read with {reader}. Leave it out.'
      )
  has_twins, splits = config.partition.has_twins, config.client_splits
  if part == 'own_test' and has_twins and splits.validation_clients_fraction:
    raise UserError(
      f'{reader} is not available with the validation clients of '
      '`client_splits.validation_clients_fraction`, whose rows it would score. '
      "Name 'held_out'."
    )
  validation, test = config.row_fractions
  has_rows = validation
  if part == 'own_test':
    has_rows = test or has_twins
  if not has_rows:
    rows = part.removeprefix('own_')
    raise UserError(
      f'{reader} requires clients with {rows} rows, but the run has none. '
      f'Train with `--config.client_splits.{rows}_fraction` above 0.'
    )


def _client_ids(config, options, corpus, split):
  """Returns the clients that may be scored by halves; None: own rows."""
  if split is None:
    return corpus.client_ids
  if _own_rows(config, options):
    return None
  client_ids = getattr(split, options.client_split)
  if options.held_out_from:
    client_ids = client_splits.split_clients(
      client_ids,
      split_seed=config.seeds.split_seed,
      held_out_fraction=options.held_out_from,
    ).participating
  if not client_ids:
    _raise_no_clients(config, options)
  return client_ids


def _raise_no_clients(config, options):
  if options.held_out_from:
    raise UserError(
      f'`--held_out_from` {options.held_out_from} must be the place of a '
      'held-out client or below one, but all lie below it. Lower it.'
    )
  raise UserError(
    f'`--client_split` is {options.client_split!r}, but the run has no such '
    'clients (held_out_fraction '
    f'{config.client_splits.held_out_fraction}). Name another split.'
  )


def _kind(config, options, run, identity, is_own):
  """Returns the kind of the evaluation; another part of a split is held out."""
  if is_own:
    return _own_rows(config, options) or options.client_split
  trained_on = run and corpus_identity.read_identity(run)
  is_part = trained_on and trained_on.grouping == identity.grouping
  return 'held_out' if is_part else 'transfer'


def _directory(run, typed):
  """Returns `directory` of a model without a run, as it was typed."""
  if run is not None:
    return {}
  # A path may hold bytes that are no text.
  return {'directory': os.fsencode(typed).decode('utf-8', 'backslashreplace')}


def _states(config, options, checkpoint):
  """Returns what clients kept; None where nothing reads it."""
  has_models = config.method.personal(config) is not None
  if has_models or (options.barrier and config.kept_models):
    return client_state.states_of_checkpoint(checkpoint)
  return None
