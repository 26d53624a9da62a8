"""`fedfish evaluate`: a checkpoint on the clients of a corpus."""

import contextlib
import dataclasses
import functools
import itertools
import os
import pathlib
import sys
from typing import Any

from models.model_shapes import weight_shapes
from tff_fedfish import files
from tff_fedfish.data import client_splits, unknown_tokens
from tff_fedfish.data.sequences import Sequences
from tff_fedfish.data.tokenizers import Tokenizer
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation import results
from tff_fedfish.evaluation.options import (
  EvaluationOptions,
  own_rows_of,
  raise_no_clients,
  require_measurable,
)
from tff_fedfish.evaluation.personalization import MIN_SEQUENCES
from tff_fedfish.huggingface import pretrained
from tff_fedfish.progress import Progress, stage
from tff_fedfish.run import (
  checkpoints,
  client_data,
  client_state,
  cohorts,
  corpus_identity,
  divergence,
  pretrained_run,
  run_directory,
)
from tff_fedfish.run.row_source import row_source


def evaluate(
  checkpoint: str | os.PathLike,
  data: str | os.PathLike,
  output: str | os.PathLike | None,
  options: EvaluationOptions,
) -> tuple[pathlib.Path, dict[str, Any]]:
  """Evaluates a checkpoint and writes the results.

  Args:
    checkpoint: A checkpoint, a run directory (its last), or a directory with a
      GPT-2 of transformers, which no client has been trained by.
    data: A corpus of the kind that the run trained on: grouped, or the files
      of the same corpus of images. Of another part of the split that the run
      trained on, such as `validation`, all clients are held out.
    output: Where to write; None: `evaluations/NAME` in the run, NAME being the
      corpus's directory. Required with a directory that is no run's.
    options: What to measure.

  Returns:
    (output directory, summary).

  Raises:
    UserError: If the checkpoint, the corpus, its clients or the output cannot
      be used.
  """
  run, names = None, {}
  if pretrained.is_pretrained(checkpoint):
    _require_no_run(checkpoint, output, options)
    # No run names the model. A path may hold bytes that are no text.
    typed = os.fsencode(checkpoint).decode('utf-8', 'backslashreplace')
    names = {'directory': typed}
    config = pretrained_run.config_of(checkpoint, data)
  else:
    checkpoint = divergence.resolve_checkpoint(checkpoint)
    run = checkpoint.parent.parent
    config = run_directory.read_config(run)
  with stage('opening the corpus'):
    corpus = client_data.open_corpus(config, data)
  output = files.require_usable_output(
    output or run / 'evaluations' / pathlib.Path(data).resolve().name,
    '--output',
  )
  open_checkpoint = (client_data if run else pretrained_run).open_checkpoint
  with stage('opening the checkpoint'):
    found, tokenizer = open_checkpoint(config, checkpoint)
  config = config.in_round(found.round_num)
  identity = corpus_identity.identify(config, corpus)
  split, kind = None, options.client_split
  if found.contents.get('corpus_fingerprint') == identity.fingerprint:
    split = row_source(config).split(corpus)
  # Of every other corpus all clients are held out.
  elif run is None or not _is_other_part(run, found.contents, identity):
    kind = 'transfer'
  require_measurable(config, options, data, is_own_corpus=split is not None)
  own_rows = own_rows_of(config, options)
  states = None
  if config.method.personal(config) is not None or (
    options.barrier and config.kept_slots
  ):
    states = client_state.states_of_checkpoint(found)
  summarize = functools.partial(
    results.summarize_evaluation,
    corpus=identity.label(data),
    corpus_identity=identity.to_json_dict(),
    checkpoint={'round': found.round_num, **names},
  )
  if own_rows:
    # Late: the errors above must not wait for TensorFlow.
    from tff_fedfish.evaluation import own_tests

    with stage('building the model'):
      measured = own_tests.OwnTests(config, corpus, tokenizer, found, states)
    return _evaluate_own_rows(
      measured, config, options, data, output, summarize, own_rows
    )
  client_ids = _client_ids(corpus, config, options, split)
  sequence_length = _sequence_length(config, options)
  split_unit = options.split_unit or config.evaluation.split_unit

  with stage('choosing clients'):
    # Late: the errors above must not wait for TensorFlow.
    from tff_fedfish.evaluation import evaluation_clients
    from tff_fedfish.run import model_state

    sample = evaluation_clients.choose_clients(
      client_ids,
      row_source(config).client_rows(
        corpus, tokenizer, sequence_length=sequence_length
      ),
      split_seed=config.seeds.split_seed,
      split_unit=split_unit,
      max_clients=options.max_clients,
      fractions=options.fractions,
      max_sequences=options.max_sequences_per_client,
    )
  if not sample.clients:
    rows = corpus.row_name
    if sequence_length and split_unit == 'documents':
      rows = 'documents'
    elif sequence_length:
      rows += f' of {sequence_length} tokens'
    raise UserError(
      f'`--data` {str(data)!r} must have clients with at least '
      f'{MIN_SEQUENCES} {rows}, but none of its {len(client_ids)} has. Name '
      'another corpus.'
    )
  with stage('building the model'):
    if run is None:
      weights = tuple(found.tensors.values())
      loaded = dataclasses.replace(
        found, tensors=model_state.trainable_tensors(weights)
      )
    else:
      loaded = checkpoints.load_checkpoint(
        found.path,
        '' if options.barrier else model_state.WEIGHTS_PREFIX,
        verify=False,
      )
    measurement = _Measurement(config, loaded, options)
  clients = measurement.personalization(sample)
  barriers = effective_clients = None
  if options.barrier:
    barriers, effective_clients = measurement.barrier(
      # Always what the run itself trains on.
      row_source(config).training_clients(split),
      row_source(config).training_rows(corpus, tokenizer),
      states,
    )
  summary = summarize(
    clients,
    kind=kind,
    personalization={
      'epochs': options.personalization_epochs,
      'learning_rate': measurement.learning_rate,
      'batch_size': config.client_work.local_batch_size,
      'sequence_length': sequence_length,
      'split_seed': config.seeds.split_seed,
      'split_unit': split_unit if sequence_length else None,
      'max_sequences_per_client': options.max_sequences_per_client,
    },
    skipped_clients=sample.skipped,
    barriers=barriers,
    effective_clients=effective_clients,
    unknown_token_fraction=unknown_tokens.fraction_of(
      (halves.evaluation for _, halves in sample.clients), tokenizer
    ),
    num_bytes=tokenizer
    and {
      client_id: num_scored_bytes(halves.evaluation, tokenizer)
      for client_id, halves in sample.clients
    },
  )
  results.write_evaluation(output, summary, clients, barriers)
  if all(row['loss']['mean'] is None for row in summary['fractions']):
    _warn_of_non_finite_losses(found.path, run)
  return output, summary


def num_scored_bytes(rows: Sequences, tokenizer: Tokenizer) -> int:
  """Returns the UTF-8 bytes of the targets of a client's sequences.

  Bits per byte of the same text can be compared where vocabularies differ. The
  first token of a sequence is not a target. Ends of texts have no bytes; what a
  vocabulary normalizes away or cannot express counts as it is decoded.
  """
  return sum(
    tokenizer.num_bytes(tokens[: num_targets + 1])
    - tokenizer.num_bytes(tokens[:1])
    for tokens, num_targets in zip(rows.tokens, rows.num_targets, strict=True)
  )


def _require_no_run(checkpoint, output, options):
  """Raises UserError where options need the run that a model does not have."""
  for name, value, wanted in (
    ('output', output, True),
    ('barrier', options.barrier, False),
    ('client_split', options.client_split != 'held_out', False),
  ):
    if bool(value) != wanted:
      raise UserError(
        f'`--checkpoint` {str(checkpoint)!r} is a model without a run, with '
        f'which `--{name}` {"is required" if wanted else "has no meaning"}. '
        f'{"Name a new directory" if wanted else "Leave it out"}.'
      )


def _evaluate_own_rows(
  measured, config, options, data, output, summarize, kind
):
  """Evaluates the clients that train, each on rows of its own."""
  client_ids = measured.participating[: options.max_clients]
  with Progress('evaluate', len(client_ids), unit='client') as progress:
    clients = measured.evaluate(
      client_ids,
      kind=kind,
      max_sequences=options.max_sequences_per_client,
      on_client=lambda score: progress.advance(loss=score.loss),
    )
  if not clients:
    raise UserError(
      f'`--data` {str(data)!r} must have clients with {_part(kind)} rows, but '
      f'none of its {len(client_ids)} has. Train on a corpus with more rows a '
      'client.'
    )
  summary = summarize(
    clients,
    kind=kind,
    personalization={
      'sequence_length': config.data.sequence_length,
      'split_seed': config.seeds.split_seed,
      'max_sequences_per_client': options.max_sequences_per_client,
    },
    skipped_clients={
      # For tests, or for the validation that a method's model needs.
      'without_own_rows': len(client_ids) - len(clients),
      'beyond_max_clients': len(measured.participating) - len(client_ids),
    },
  )
  results.write_evaluation(
    output, summary, clients, affinities=measured.affinities()
  )
  return output, summary


def _part(kind):
  """Returns 'test' or 'validation'."""
  return kind.removeprefix('own_')


def _is_other_part(run, contents, identity):
  """Says whether a corpus is of the grouping that a run trained on a part of.

  False for runs that do not say what they trained on.
  """
  trained_on = corpus_identity.read_identity(run)
  if trained_on is None:
    return False
  if trained_on.fingerprint != contents.get('corpus_fingerprint'):
    raise UserError(
      f'{str(run / corpus_identity.CORPUS_NAME)!r} must name the corpus that '
      'the checkpoint was trained on, but names another. Restore the file.'
    )
  return trained_on.grouping == identity.grouping


def _warn_of_non_finite_losses(path, run):
  line = (
    'fedfish: warning: no client has a finite loss with the model in '
    f'{str(path)!r}.'
  )
  # A run's metrics.csv need not have been copied along.
  with contextlib.suppress(UserError):
    good = run and divergence.read_history(run, 0).last_good_checkpoint()
    if good and good != path:
      line += f' The last good checkpoint of its run is {str(good)!r}.'
  print(line, file=sys.stderr)


class _Measurement:
  """The graphs and weights that all clients share."""

  def __init__(self, config, loaded, options):
    from tff_fedfish.evaluation import client_evaluator
    from tff_fedfish.run import model_state
    from tff_fedfish.runtime.in_process_context import set_in_process_context

    set_in_process_context()
    self._config = config
    self._loaded = loaded
    self._options = options
    self.learning_rate = options.learning_rate
    if self.learning_rate is None:
      self.learning_rate = config.fine_tuning_rate
    self._weights = model_state.model_weights(
      loaded.tensors, model_state.server_shapes(config, loaded), loaded.path
    )
    self._evaluator = client_evaluator.build_evaluator(config)

  def personalization(self, sample):
    from tff_fedfish.evaluation.personalization import evaluate_clients

    rows = []
    clients = evaluate_clients(
      self._evaluator,
      self._weights.trainable,
      sample.clients,
      self._options.fractions,
      num_local_epochs=self._options.personalization_epochs,
      learning_rate=self.learning_rate,
      non_trainable=self._weights.non_trainable,
    )
    with stage('tracing, first client'):
      first = next(clients)
    total = len(sample.clients)
    with Progress('evaluate', total, unit='client') as progress:
      for entries in itertools.chain([first], clients):
        rows.extend(entries)
        progress.advance(loss=entries[-1].loss_after)
    return rows

  def barrier(self, participating, client_rows, states):
    from tff_fedfish.evaluation import barrier, effective_sample_size
    from tff_fedfish.run import build, model_state
    from tff_fedfish.run.client_inputs import ClientInputs
    from tff_fedfish.runtime import round_options

    config = self._config
    process = build.build_learning_process(config)
    build.require_trained_models(config, process)
    state = model_state.from_tensors(
      self._loaded.tensors,
      process.initialize.type_signature.result,
      self._loaded.path,
    )
    round_num, kept = self._loaded.round_num + 1, None
    if states is not None:
      kept = ClientInputs(
        config=config,
        process=process,
        states=states,
        participating=participating,
      )
    state = build.with_rates(process, state, config, round_num)
    cohort = cohorts.cohort(config, participating, client_rows, round_num, kept)
    mass, fraction = effective_sample_size.informed_mass_of(config)
    effective = effective_sample_size.EffectiveClients(
      mass,
      len(weight_shapes(config.model_shape())),
      state.aggregator,
      plain_mean_fraction=fraction,
    )

    # The round that the run would go on with, or went on with, to its last bit.
    options = round_options.RoundOptions(
      num_partial_sums=config.num_partial_sums
    )
    with round_options.use_round_options(options):
      with stage('replaying the round'):
        new_state = process.next(state, list(cohort)).state
      # Each client is trained, then the server's models are scored on it.
      with Progress('barrier', 2 * len(cohort), unit='step') as progress:

        def advancing():
          for client in cohort:
            yield client
            progress.advance()

        barriers = barrier.measure_clients(
          process,
          state,
          process.get_model_weights(new_state).trainable,
          self._evaluator,
          advancing(),
          on_client_trained=lambda trained: effective.add(
            trained['update'], trained['client_weight']
          ),
          before_scoring=progress.advance,
        )
    return barriers, effective.summary()


def _sequence_length(config, options):
  """Returns the tokens of a sequence; None with images."""
  wanted, trained = options.sequence_length, config.data.sequence_length
  if config.data.holds_images and wanted is not None:
    raise UserError(
      f'`--sequence_length` is {wanted}, but the model was trained on images. '
      'Leave it out.'
    )
  if wanted is not None and wanted > trained:
    raise UserError(
      f'`--sequence_length` is {wanted}, but the model was trained with '
      f'{trained} positions. Lower it.'
    )
  return wanted or trained


def _client_ids(corpus, config, options, split):
  """Returns the clients that may be evaluated."""
  if split is None:
    return corpus.client_ids
  client_ids = getattr(split, options.client_split)
  if options.held_out_from:
    client_ids = client_splits.split_clients(
      client_ids,
      split_seed=config.seeds.split_seed,
      held_out_fraction=options.held_out_from,
    ).participating
  if not client_ids:
    raise_no_clients(config, options)
  return client_ids
