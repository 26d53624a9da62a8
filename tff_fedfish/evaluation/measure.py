"""Measures what an evaluation planned, and writes it. Imports TensorFlow."""

import dataclasses
import itertools
from typing import Any

from tff_fedfish.data import unknown_tokens
from tff_fedfish.data.sequences import Sequences
from tff_fedfish.data.tokenizers import Tokenizer
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation import barrier, own_tests
from tff_fedfish.evaluation.clients import ClientSample, choose_clients
from tff_fedfish.evaluation.evaluator import (
  build_evaluator,
  client_evaluation,
  evaluate_clients,
)
from tff_fedfish.evaluation.options import MIN_SEQUENCES, OWN_ROWS
from tff_fedfish.evaluation.plan import Plan
from tff_fedfish.evaluation.results import write_evaluation
from tff_fedfish.evaluation.summary import Summary, summarize_evaluation
from tff_fedfish.progress import Progress, stage
from tff_fedfish.run import checkpoints, model_state
from tff_fedfish.run.checkpoints import Checkpoint
from tff_fedfish.run.row_source import row_source
from tff_fedfish.runtime.in_process_context import set_in_process_context


def measure(plan: Plan) -> Summary:
  """Measures a plan and writes its directory; returns the summary.

  Raises:
    UserError: If no client can be scored, or the checkpoint is not of the
      config's model.
  """
  if plan.facts['kind'] in OWN_ROWS:
    return _measure_own_rows(plan)
  return _measure_halves(plan)


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


def _measure_halves(plan: Plan) -> Summary:
  """Scores clients on one half, before and after fine-tuning on the other."""
  config, options, tokenizer = plan.config, plan.options, plan.tokenizer
  with stage('choosing clients'):
    sample = _choose(plan)
  with stage('building the model'):
    set_in_process_context()
    checkpoint = _load(plan)
    weights = model_state.model_weights(
      checkpoint.tensors,
      model_state.server_shapes(config, checkpoint),
      checkpoint.path,
    )
    evaluator = build_evaluator(config)
  clients = _with_progress(
    evaluate_clients(
      evaluator,
      weights.trainable,
      sample.clients,
      options.fractions,
      num_local_epochs=options.personalization_epochs,
      learning_rate=plan.learning_rate,
      non_trainable=weights.non_trainable,
    ),
    len(sample.clients),
  )
  barriers = effective_clients = None
  if options.barrier:
    source = row_source(config)
    barriers, effective_clients = barrier.replay_round(
      config,
      checkpoint,
      # Always those of the run itself.
      source.training_clients(plan.split),
      source.training_rows(plan.corpus, tokenizer),
      plan.states,
    )
  halves = {client_id: half.evaluation for client_id, half in sample.clients}
  summary = summarize_evaluation(
    clients,
    personalization=_personalization(plan),
    skipped_clients=sample.skipped,
    barriers=barriers,
    effective_clients=effective_clients,
    unknown_token_fraction=unknown_tokens.fraction_of(
      halves.values(), tokenizer
    ),
    num_bytes=tokenizer
    and {i: num_scored_bytes(rows, tokenizer) for i, rows in halves.items()},
    **plan.facts,
  )
  write_evaluation(plan.output, summary, clients, barriers)
  return summary


def _measure_own_rows(plan: Plan) -> Summary:
  """Scores the clients that train, each on rows of its own."""
  kind = plan.facts['kind']
  with stage('building the model'):
    tests = own_tests.open_own_tests(
      plan.config, plan.corpus, plan.tokenizer, plan.checkpoint, plan.states
    )
  max_sequences = plan.options.max_sequences_per_client
  client_ids = tests.participating[: plan.options.max_clients]
  scores = tests.scores(client_ids, kind=kind, max_sequences=max_sequences)
  model, clients = 'global' if tests.kept is None else 'personal', []
  with Progress('evaluate', len(client_ids), unit='client') as progress:
    for client_id, num_rows, score in scores:
      progress.advance(loss=score.loss)
      clients.append(
        client_evaluation(client_id, num_rows, score, score, model=model)
      )
  if not clients:
    raise UserError(
      f'`--data` {str(plan.data)!r} must have clients with '
      f'{kind.removeprefix("own_")} rows, but none of its '
      f'{len(client_ids)} has. Train on a corpus with more rows a client.'
    )
  summary = summarize_evaluation(
    clients,
    personalization={
      'sequence_length': plan.sequence_length,
      'split_seed': plan.config.seeds.split_seed,
      'max_sequences_per_client': max_sequences,
    },
    skipped_clients={
      # For tests, or for the validation that a method's model needs.
      'without_own_rows': len(client_ids) - len(clients),
      'beyond_max_clients': len(tests.participating) - len(client_ids),
    },
    **plan.facts,
  )
  affinities = own_tests.affinities(tests, plan.corpus)
  write_evaluation(plan.output, summary, clients, affinities=affinities)
  return summary


def _personalization(plan: Plan) -> dict[str, Any]:
  """Returns the settings of halves and fine-tuning."""
  return {
    'epochs': plan.options.personalization_epochs,
    'learning_rate': plan.learning_rate,
    'batch_size': plan.config.client_work.local_batch_size,
    'sequence_length': plan.sequence_length,
    'split_seed': plan.config.seeds.split_seed,
    'split_unit': plan.split_unit,
    'max_sequences_per_client': plan.options.max_sequences_per_client,
  }


def _choose(plan: Plan) -> ClientSample:
  """Returns the clients to score; raises UserError if none is large enough."""
  sample = choose_clients(
    plan.client_ids,
    row_source(plan.config).client_rows(
      plan.corpus, plan.tokenizer, sequence_length=plan.sequence_length
    ),
    split_seed=plan.config.seeds.split_seed,
    split_unit=plan.split_unit,
    max_clients=plan.options.max_clients,
    fractions=plan.options.fractions,
    max_sequences=plan.options.max_sequences_per_client,
  )
  if sample.clients:
    return sample
  rows = 'documents'
  if plan.split_unit != rows:
    rows = plan.corpus.row_name
  raise UserError(
    f'`--data` {str(plan.data)!r} must have clients with at least '
    f'{MIN_SEQUENCES} {rows}, but none of its {len(plan.client_ids)} has. Name '
    'another corpus.'
  )


def _load(plan: Plan) -> Checkpoint:
  """Returns the checkpoint with its weights; all tensors for the barrier."""
  checkpoint = plan.checkpoint
  if plan.run is None:
    tensors = model_state.trainable_tensors(tuple(checkpoint.tensors.values()))
    return dataclasses.replace(checkpoint, tensors=tensors)
  prefix = '' if plan.options.barrier else model_state.WEIGHTS_PREFIX
  return checkpoints.load_checkpoint(checkpoint.path, prefix, verify=False)


def _with_progress(clients, total):
  """Returns the entries of all clients; shows each as it is done."""
  with stage('tracing, first client'):
    first = next(clients)
  rows = []
  with Progress('evaluate', total, unit='client') as progress:
    for entries in itertools.chain([first], clients):
      rows.extend(entries)
      progress.advance(loss=entries[-1].loss_after)
  return rows
