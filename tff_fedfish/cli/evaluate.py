r"""Evaluates a checkpoint: held-out, personalized and transfer performance.

Examples:
  fedfish evaluate --checkpoint runs/mine \
      --data runs/demo/corpora/debian_descriptions --barrier
  fedfish evaluate --checkpoint runs/mine/checkpoints/round_00000020 \
      --data runs/demo/corpora/sotu_by_president --max_clients all \
      --output runs/sotu_scores

Half of each client's data is always kept for scoring. Before scoring, the model
is fine-tuned on a fraction (0, 0.25 or 0.5 of all data) from the other half.

On the corpus of the run its held-out clients are evaluated, in another corpus
all clients. Another part of the run's corpus (`fedfish group --split_by`) is
held out, any other corpus is transfer. By default at most 64 of these clients
are taken, and 64 sequences of each; what is left out is counted.

The time left is shown after the second client. A stopped evaluation continues
with the same command.

The column 'hurt' is the fraction of clients whose loss is higher after
personalization, or not finite.
"""

import argparse

from tff_fedfish.cli.options import add_options, read_options

SUMMARY = 'evaluate a checkpoint on held-out clients or another corpus'
_BOUND = 'max clients', '--max_clients'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish evaluate`."""
  from tff_fedfish.evaluation.options import EvaluationOptions

  parser.add_argument(
    '--checkpoint',
    required=True,
    metavar='DIR',
    help='a checkpoint, a run directory (its last good one), RUN@best (its '
    'evaluated round with the lowest loss), or a directory with a GPT-2 of '
    'transformers',
  )
  parser.add_argument(
    '--data',
    required=True,
    metavar='DIR',
    help="a grouped corpus; for image models the corpus's files",
  )
  parser.add_argument(
    '--output',
    metavar='DIR',
    help='where to write (default: evaluations/CORPUS in the run, or '
    'CORPUS_best)',
  )
  add_options(parser, EvaluationOptions)


def run(arguments: argparse.Namespace) -> int:
  """Evaluates and prints the summary."""
  from tff_fedfish.evaluation.evaluate import evaluate
  from tff_fedfish.evaluation.options import EvaluationOptions
  from tff_fedfish.training.interruption import abandonable

  with abandonable():
    output, evaluation = evaluate(
      arguments.checkpoint,
      arguments.data,
      arguments.output,
      read_options(arguments, EvaluationOptions),
    )
  _print_evaluation(evaluation)
  print(f'Per-client results and summary: {output}')
  return 0


def _print_evaluation(evaluation) -> None:
  from tff_fedfish.data import unknown_tokens
  from tff_fedfish.evaluation import statistics
  from tff_fedfish.printing import count, print_table

  summary = evaluation.summary
  print_table(
    f'{summary.corpus} ({summary.kind}), round {summary.round_num}, '
    f'{summary.num_clients} clients',
    ('data used', 'loss (nats)', '95 % interval', 'accuracy', 'hurt'),
    [
      (
        f'{row.fraction:.0%}',
        _number(row.loss.mean, '.4f'),
        f'{_number(row.loss.ci_low, ".4f")} to '
        f'{_number(row.loss.ci_high, ".4f")}',
        _number(row.accuracy.mean, '.2%'),
        _number(row.share_of_clients_hurt, '.0%', missing=''),
      )
      for row in statistics.fraction_scores(evaluation.clients)
    ],
    text_columns=(),
  )
  if evaluation.clients['fraction'].any():
    settings = summary.personalization
    print(
      f'Fine-tuning: {count(settings["epochs"], "epoch")}, learning rate '
      f'{settings["learning_rate"]:g}'
    )
  left_out = [
    f'{number:,} ({reason.replace("_", " ").replace(*_BOUND)})'
    for reason, number in summary.skipped_clients.items()
    if number
  ]
  if left_out:
    print(f'Clients left out: {", ".join(left_out)}')
  if summary.skipped_sequences:
    print(
      f'Sequences left out: {summary.skipped_sequences:,} (beyond '
      '--max_sequences_per_client)'
    )
  if summary.unknown_token_fraction is not None:
    print(unknown_tokens.describe(summary.unknown_token_fraction))
  if summary.overlap is not None:
    print(summary.overlap.line())
  if evaluation.barriers is not None:
    barrier = statistics.barrier_scores(evaluation.barriers)
    print(
      f'Client-Server Barrier: {_number(barrier.loss.mean, ".4f")} nats per '
      f'target ({barrier.num_clients} clients). Global loss: '
      f'{_number(barrier.global_loss, ".4f")}. Local loss: '
      f'{_number(barrier.local_loss, ".4f")}'
    )


def _number(value, spec: str, missing: str = '-') -> str:
  return missing if value is None else format(value, spec)
