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
from tff_fedfish.data import unknown_tokens
from tff_fedfish.data.sequences import Sequences
from tff_fedfish.data.tokenizers import Tokenizer
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation import results
from tff_fedfish.evaluation.options import EvaluationOptions
from tff_fedfish.evaluation.personalization import MIN_SEQUENCES
from tff_fedfish.huggingface import pretrained
from tff_fedfish.progress import Progress, stage
from tff_fedfish.run import (
  checkpoints,
  client_states,
  cohort_data,
  corpus_identity,
  divergence,
  pretrained_run,
  row_division,
  run_directory,
  run_inputs,
)


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
    checkpoint = checkpoints.resolve_checkpoint(checkpoint)
    run = checkpoint.parent.parent
    config = run_directory.read_config(run)
  with stage('opening the corpus'):
    corpus = run_inputs.open_corpus(config, data)
  output = files.require_usable_output(
    output or run / 'evaluations' / pathlib.Path(data).resolve().name,
    '--output',
  )
  open_checkpoint = (run_inputs if run else pretrained_run).open_checkpoint
  with stage('opening the checkpoint'):
    found, tokenizer = open_checkpoint(config, checkpoint)
  config = config.in_round(found.round_num)
  if options.barrier and config.method.solver is not None:
    raise UserError(
      '`--barrier` replays a round, which ends with a solve of '
      f'{config.algorithm.name!r} that is not replayed. Leave it out, or '
      'measure the barrier in training with '
      '`--config.evaluation.barrier_every_num_rounds`.'
    )
  if options.barrier and len(config.phases) > 1:
    raise UserError(
      f'`--barrier` replays a round, whose clients {config.algorithm.name!r} '
      'feeds with other inputs in each of its phases, which is not replayed. '
      'Leave it out.'
    )
  personal = config.method.personal(config)
  states = None
  own_rows = options.client_split in results.OWN_ROWS and options.client_split
  if personal is not None:
    own_rows = own_rows or 'own_test'
    if options.barrier:
      raise UserError(
        '`--barrier` compares clients with the global model, but each client '
        f'of {config.algorithm.name!r} has a model of its own. Leave it out.'
      )
  if personal is not None or (options.barrier and config.kept_slots):
    states = client_states.states_of_checkpoint(found)
  identity = corpus_identity.identify(config, corpus)
  split, kind = None, options.client_split
  if found.contents.get('corpus_fingerprint') == identity.fingerprint:
    split = run_inputs.split_corpus(config, corpus)
  # Of every other corpus all clients are held out.
  elif run is None or not _is_other_part(run, found.contents, identity):
    kind = 'transfer'
  summarize = functools.partial(
    results.summarize_evaluation,
    corpus=identity.label(data),
    corpus_identity=identity.to_json_dict(),
    checkpoint={'round': found.round_num, **names},
  )
  if own_rows:
    _require_own_rows(config, options, data, split, own_rows)
    # Late: the errors above must not wait for TensorFlow.
    from tff_fedfish.evaluation import own_tests

    with stage('building the model'):
      measured = own_tests.OwnTests(config, corpus, tokenizer, found, states)
    return _evaluate_own_rows(
      measured, config, options, data, output, summarize, own_rows
    )
  client_ids = _client_ids(corpus, data, config, options, split)
  sequence_length = _sequence_length(config, options)
  split_unit = options.split_unit or config.evaluation.split_unit

  with stage('choosing clients'):
    # Late: the errors above must not wait for TensorFlow.
    from tff_fedfish.evaluation import evaluation_clients
    from tff_fedfish.run import learning_setup

    sample = evaluation_clients.choose_clients(
      client_ids,
      run_inputs.client_rows(
        config, corpus, tokenizer, sequence_length=sequence_length
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
        found, tensors=learning_setup.trainable_tensors(weights)
      )
    else:
      loaded = checkpoints.load_checkpoint(
        found.path,
        '' if options.barrier else learning_setup.WEIGHTS_PREFIX,
        verify=False,
      )
    measurement = _Measurement(config, loaded, options)
  clients = measurement.personalization(sample)
  barriers = effective_clients = None
  if options.barrier:
    barriers, effective_clients = measurement.barrier(
      # Always what the run itself trains on.
      run_inputs.training_clients(config, split),
      run_inputs.training_rows(config, corpus, tokenizer),
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


def _require_own_rows(config, options, data, split, kind):
  """Raises UserError where clients cannot be scored on rows of their own."""
  name = repr(config.algorithm.name)
  if split is None:
    raise UserError(
      f'`--client_split` {kind!r}, which is that of methods with models of '
      "clients' own, scores the clients that the run trained, so `--data` must "
      f'be its corpus, but {str(data)!r} is another. Name that of the run.'
    )
  default = type(options)().fractions
  if options.fractions not in (default, (0.0,)):
    raise UserError(
      f'`--fractions` must be 0 with `--client_split` {kind!r}, whose models '
      f'are not fine-tuned, found {",".join(map(str, options.fractions))} with '
      f'algorithm.name {name}. Leave it out.'
    )
  unread = ('sequence_length', 'split_unit', 'learning_rate')
  for option in (*unread, 'personalization_epochs', 'barrier'):
    value = getattr(options, option)
    if value != getattr(type(options)(), option):
      raise UserError(
        f'`--{option}` is not read with `--client_split` {kind!r}, found '
        f'{value!r}. Leave it out.'
      )
  if kind == 'own_validation' and not config.row_fractions[0]:
    raise UserError(
      "`--client_split` 'own_validation' requires clients with validation "
      'rows, but the run has none. Train with '
      '`--config.client_splits.validation_fraction` above 0.'
    )
  if kind == 'own_test' and not row_division.division_of(config).has_tests:
    raise UserError(
      "`--client_split` 'own_test' requires clients with test rows, but the "
      'run has none. Train with `--config.client_splits.test_fraction` above '
      "0, or with `--config.partition.held_out` 'matching'."
    )


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
    from tff_fedfish.run import learning_setup
    from tff_fedfish.runtime.in_process_context import set_in_process_context

    set_in_process_context()
    self._config = config
    self._loaded = loaded
    self._options = options
    self.learning_rate = options.learning_rate
    if self.learning_rate is None:
      self.learning_rate = config.fine_tuning_rate
    self._weights = learning_setup.model_weights(
      loaded.tensors, learning_setup.server_shapes(config, loaded), loaded.path
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
    from tff_fedfish.run import learning_setup
    from tff_fedfish.run.kept_inputs import KeptInputs
    from tff_fedfish.runtime import round_options

    config = self._config
    process = learning_setup.build_learning_process(config)
    learning_setup.require_declared_process(
      config, process, with_trained_models=True
    )
    state = learning_setup.from_tensors(
      self._loaded.tensors,
      process.initialize.type_signature.result,
      self._loaded.path,
    )
    round_num, kept = self._loaded.round_num + 1, None
    if states is not None:
      kept = KeptInputs(
        config=config,
        process=process,
        states=states,
        participating=participating,
      )
    state = learning_setup.with_rates(process, state, config, round_num)
    cohort = cohort_data.cohort(
      config, participating, client_rows, round_num, kept
    )
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


def _client_ids(corpus, data, config, options, split):
  """Returns the clients that may be evaluated."""
  if split is None:
    if options.barrier:
      raise UserError(
        '`--barrier` replays a round of training, so `--data` must be the '
        f'corpus of the run, but {str(data)!r} is another. Leave '
        '`--barrier` out.'
      )
    if options.client_split != 'held_out':
      raise UserError(
        f'`--client_split` is {options.client_split!r}, but all clients of '
        f'{str(data)!r}, which is not the corpus of the run, are '
        'held out. Leave `--client_split` out.'
      )
    return corpus.client_ids
  client_ids = getattr(split, options.client_split)
  if not client_ids:
    raise UserError(
      f'`--client_split` is {options.client_split!r}, but the run has no such '
      f'clients (held_out_fraction '
      f'{config.client_splits.held_out_fraction}). Name the other split.'
    )
  return client_ids
