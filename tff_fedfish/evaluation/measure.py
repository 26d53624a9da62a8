"""Measures what an evaluation planned, and writes it. Imports TensorFlow."""

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data import unknown_tokens
from tff_fedfish.data.cohorts import draw_order
from tff_fedfish.data.sequences import Sequences
from tff_fedfish.data.tokenizers import Tokenizer
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation import barrier, own_tests
from tff_fedfish.evaluation.clients import (
  ClientSample,
  Halves,
  choose_clients,
)
from tff_fedfish.evaluation.evaluator import build_evaluator, evaluate_clients
from tff_fedfish.evaluation.options import (
  MIN_SEQUENCES,
  OWN_ROWS,
  EvaluationOptions,
)
from tff_fedfish.evaluation.overlap import measure_overlap
from tff_fedfish.evaluation.plan import Plan
from tff_fedfish.evaluation.results import write_evaluation
from tff_fedfish.evaluation.summary import Summary
from tff_fedfish.evaluation.tables import ClientBarrier, ClientEvaluation
from tff_fedfish.evaluation.unfinished import UnfinishedRows
from tff_fedfish.planning.client_steps import client_steps
from tff_fedfish.printing import count
from tff_fedfish.progress import Progress, stage
from tff_fedfish.run import checkpoints, model_state
from tff_fedfish.run.row_source import row_source
from tff_fedfish.runtime.in_process_context import set_in_process_context

# Time of fine-tuning on a row, relative to scoring it.
_TUNING = 3


def measure(plan: Plan) -> None:
  """Measures a plan and writes its directory.

  Raises:
    UserError: If no client can be scored, or the checkpoint is not of the
      config's model.
  """
  with UnfinishedRows(plan) as kept:
    _measure(plan, kept)


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


def _measure(plan: Plan, kept: UnfinishedRows) -> None:
  options, tokenizer = plan.options, plan.tokenizer
  is_own = plan.facts['kind'] in OWN_ROWS
  fractions = (0.0,) if is_own else options.fractions
  with stage('choosing clients'):
    sample = (_choose_own_rows if is_own else _choose)(plan)
  halves = dict(sample.clients)
  with stage('building the model'):
    set_in_process_context()
    weights_of, non_trainable = _open_models(plan, is_own)
    evaluator = build_evaluator(plan.config)
  num_sequences = sum(half.num_sequences for half in halves.values())
  _announce(plan, len(halves), num_sequences, sample.skipped)
  clients = _score(
    kept,
    len(fractions),
    {client_id: _work(half, options) for client_id, half in sample.clients},
    lambda client_ids: evaluate_clients(
      evaluator,
      weights_of,
      [(client_id, halves[client_id]) for client_id in client_ids],
      fractions,
      num_local_epochs=options.personalization_epochs,
      learning_rate=plan.learning_rate,
      non_trainable=non_trainable,
      model='global' if plan.states is None or not is_own else 'personal',
    ),
  )
  barriers = _replay(plan) if options.barrier else None
  scored = [half.evaluation for half in halves.values()]
  summary = Summary(
    num_clients=len(halves),
    personalization=_personalization(plan, is_own),
    skipped_clients=dict(sorted(sample.skipped.items())),
    skipped_sequences=sum(
      half.num_dropped_sequences for half in halves.values()
    ),
    unknown_token_fraction=unknown_tokens.fraction_of(scored, tokenizer),
    num_scored_bytes=(
      tokenizer and sum(num_scored_bytes(rows, tokenizer) for rows in scored)
    ),
    overlap=measure_overlap(plan, list(halves)),
    **plan.facts,
  )
  write_evaluation(plan.output, summary, clients, barriers)


def _personalization(plan: Plan, is_own: bool) -> dict[str, Any]:
  """Returns the settings of what is scored, and of halves and fine-tuning."""
  settings = {
    'sequence_length': plan.sequence_length,
    'split_seed': plan.config.seeds.split_seed,
    'max_sequences_per_client': plan.options.max_sequences_per_client,
  }
  if is_own:
    return settings
  return settings | {
    'epochs': plan.options.personalization_epochs,
    'learning_rate': plan.learning_rate,
    'batch_size': plan.config.client_work.local_batch_size,
    'split_unit': plan.split_unit,
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
  is_by_documents = plan.split_unit == 'documents'
  rows = 'documents' if is_by_documents else plan.corpus.row_name
  raise UserError(
    f'`--data` {str(plan.data)!r} must have clients with at least '
    f'{MIN_SEQUENCES} {rows}, but none of its {len(plan.client_ids)} has. Name '
    'another corpus.'
  )


def _choose_own_rows(plan: Plan) -> ClientSample:
  """Returns clients that train and the rows of their own that are scored."""
  source, part = row_source(plan.config), plan.facts['kind']
  rows = source.with_test_rows(
    plan.corpus, source.training_rows(plan.corpus, plan.tokenizer)
  )
  rows_of = rows.test_sequences
  if part == 'own_validation':
    rows_of = rows.validation_sequences
  participating = source.training_clients(plan.split)
  clients, num_without = [], 0
  for client_id in draw_order(
    participating, seed=plan.config.seeds.split_seed, round_num=0
  ):
    if len(clients) == plan.options.max_clients:
      break
    own = sequences_lib.take(
      rows_of(client_id), plan.options.max_sequences_per_client
    )
    if len(own):
      clients.append((client_id, Halves(own, {}, own.num_dropped_sequences)))
    else:
      num_without += 1
  if not clients:
    raise UserError(
      f'`--data` {str(plan.data)!r} must have clients with '
      f'{part.removeprefix("own_")} rows, but none of its {num_without} has. '
      'Train on a corpus with more rows a client.'
    )
  num_beyond = len(participating) - len(clients) - num_without
  skipped = {'beyond_max_clients': num_beyond, 'without_own_rows': num_without}
  return ClientSample(clients, skipped)


def _open_models(plan: Plan, is_own: bool) -> tuple[Callable, tuple]:
  """Returns a function from a client to its weights, and those held fixed."""
  config, checkpoint = plan.config, plan.checkpoint
  if is_own and plan.states is not None:
    models = own_tests.open_own_tests(
      config, plan.corpus, plan.tokenizer, checkpoint, plan.states
    )
    return models.weights_of, ()
  if plan.run is None:
    trainable = tuple(checkpoint.tensors.values())
    return lambda client_id: trainable, ()
  weights = model_state.model_weights(config, checkpoint)
  return lambda client_id: weights.trainable, weights.non_trainable


def _replay(plan: Plan) -> list[ClientBarrier]:
  """Returns the barrier of the round after the checkpoint."""
  source = row_source(plan.config)
  return barrier.replay_round(
    plan.config,
    checkpoints.load_checkpoint(plan.checkpoint.path, verify=False),
    # Always those of the run itself.
    source.training_clients(plan.split),
    source.training_rows(plan.corpus, plan.tokenizer),
    plan.states,
  )


def _announce(
  plan: Plan, num_clients: int, num_rows: int, skipped: Mapping[str, int]
) -> None:
  """Says on standard error how much there is to do."""
  rows = count(num_rows, plan.corpus.row_name.removesuffix('s'))
  line = f'Evaluating {count(num_clients, "client")}, {rows}'
  if left_out := skipped['beyond_max_clients']:
    left_out = count(left_out, 'client')
    line += f' ({left_out} left out: --max_clients all takes all)'
  print(line, file=sys.stderr)
  if plan.options.barrier:
    config = plan.config
    num_passes = client_steps(config).num_passes
    size = config.cohort_size or len(
      row_source(config).training_clients(plan.split)
    )
    print(
      f'Then the barrier: {count(size, "client")} of a round train twice and '
      f'are scored twice, {2 * num_passes + 2:g} passes over their rows (the '
      f'round itself has {num_passes:g})',
      file=sys.stderr,
    )


def _work(halves: Halves, options: EvaluationOptions) -> float:
  """Returns the expected time of a client, relative to scoring one row."""
  num_tuned = sum(map(len, halves.personalization.values()))
  num_scorings = 1 + len(halves.personalization)
  return (
    num_scorings * len(halves.evaluation)
    + _TUNING * options.personalization_epochs * num_tuned
  )


def _score(
  kept: UnfinishedRows,
  rows_per_client: int,
  work: Mapping[bytes, float],
  score: Callable[[Sequence[bytes]], Iterator[Sequence[ClientEvaluation]]],
) -> list[Any]:
  """Returns the rows of all clients; shows each client as it is done.

  `work` is the expected time of each client, in any unit; `score` yields the
  rows of each of some clients.
  """
  kept.begin(len(work), rows_per_client)
  left = [i for i in work if i not in kept.client_ids]
  num_kept = len(work) - len(left)
  if left:
    scores = score(left)
    with stage('tracing, first client'):
      first = next(scores)
    # The time of the first client, which compiles, is no measure.
    weights = [0] * (num_kept + 1) + [work[i] for i in left[1:]]
    with Progress(
      *('evaluate', len(work)),
      unit='client',
      completed=num_kept,
      weights=weights,
    ) as progress:
      for entries in itertools.chain([first], scores):
        kept.add(entries)
        progress.advance(loss=entries[0].loss_before)
  return list(kept.read().itertuples(index=False))
