r"""Evaluates a checkpoint: held-out, personalized and transfer performance.

Examples:
  fedfish evaluate --checkpoint runs/mine --data corpora/debian --barrier
  fedfish evaluate --checkpoint runs/mine/checkpoints/round_00000020 \
      --data corpora/sotu --fractions 0,0.25,0.5 --output results/sotu

Half of every client's documents, or images, is for scoring, always; the
fractions are shares of them, from the other half, to fine-tune on before. On
the corpus of the run the held-out clients are evaluated; in another all.
Another part of the run's corpus (`fedfish group --split_by`) is held out, any
other corpus is transfer.

The column 'hurt' is the fraction of clients whose loss on their scored half
personalization raised, or made non-finite.
"""

import argparse
import dataclasses

SUMMARY = 'evaluate a checkpoint on held-out clients or another corpus'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish evaluate`."""
  parser.add_argument(
    '--checkpoint',
    required=True,
    metavar='DIR',
    help='a checkpoint, a run directory (its last), or a directory with a '
    'GPT-2 of transformers',
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
    help='where to write (default: evaluations/CORPUS in the run)',
  )
  parser.add_argument(
    '--fractions',
    type=_fractions,
    default=(0.0, 0.25, 0.5),
    metavar='F,F,...',
    help="shares of a client's data to personalize on (default: 0,0.25,0.5)",
  )
  parser.add_argument(
    '--client_split',
    choices=('held_out', 'participating', 'own_test', 'own_validation'),
    default='held_out',
    metavar='SPLIT',
    help='which clients of the run to evaluate: held_out; participating; '
    'own_test: those that train, each on its own test rows and, where clients '
    'have models of their own, with its own; own_validation: the same on '
    'validation rows (default: %(default)s)',
  )
  parser.add_argument('--max_clients', type=int, metavar='N')
  parser.add_argument(
    '--max_sequences_per_client', type=int, metavar='N', help='default: all'
  )
  parser.add_argument(
    '--sequence_length',
    type=int,
    metavar='N',
    help="tokens per sequence, at most the model's (default: as in training)",
  )
  parser.add_argument(
    '--split_unit',
    choices=('documents', 'sequences'),
    help="what halves of a client's text are made of (default: as in the run)",
  )
  parser.add_argument(
    '--personalization_epochs', type=int, default=4, metavar='N'
  )
  parser.add_argument(
    '--learning_rate',
    type=float,
    help="of personalization (default: the run's client learning rate; 0.1 for "
    'a directory of transformers)',
  )
  parser.add_argument(
    '--barrier',
    action='store_true',
    help='also replay the next round to measure the Client-Server Barrier and '
    'the effective clients of its mean',
  )


def run(arguments: argparse.Namespace) -> int:
  """Evaluates and prints the summary."""
  from tff_fedfish.evaluation.evaluate import evaluate
  from tff_fedfish.evaluation.options import EvaluationOptions

  names = [field.name for field in dataclasses.fields(EvaluationOptions)]
  output, summary = evaluate(
    arguments.checkpoint,
    arguments.data,
    arguments.output,
    EvaluationOptions(**{name: getattr(arguments, name) for name in names}),
  )
  _print_summary(summary)
  print(f'Per-client results and summary: {output}')
  return 0


def _fractions(text: str) -> tuple[float, ...]:
  try:
    return tuple(float(part) for part in text.split(','))
  except ValueError as error:
    raise argparse.ArgumentTypeError(
      f'must be numbers separated by commas, such as 0,0.25,0.5, found {text!r}'
    ) from error


def _print_summary(summary) -> None:
  from rich.console import Console

  from tff_fedfish.data import unknown_tokens
  from tff_fedfish.printing import print_table

  rows = []
  for row in summary['fractions']:
    loss, hurt = row['loss'], row['share_of_clients_hurt']
    rows.append(
      (
        f'{row["fraction"]:.0%}',
        _number(loss['mean'], '.4f'),
        f'{_number(loss["ci_low"], ".4f")} to '
        f'{_number(loss["ci_high"], ".4f")}',
        _number(row['accuracy']['mean'], '.2%'),
        '' if hurt is None else f'{hurt:.0%}',
      )
    )
  print_table(
    f'{summary["corpus"]} ({summary["kind"]}), round '
    f'{summary["checkpoint"]["round"]}, {summary["num_clients"]} clients',
    ('data used', 'loss (nats)', '95 % interval', 'accuracy', 'hurt'),
    rows,
    text_columns=(),
    has_frame=True,
  )
  lines = []
  left_out = [
    f'{count} ({reason.replace("_", " ")})'
    for reason, count in summary['skipped_clients'].items()
    if count
  ]
  if left_out:
    lines.append(f'Clients left out: {", ".join(left_out)}')
  if (fraction := summary['unknown_token_fraction']) is not None:
    lines.append(unknown_tokens.describe(fraction))
  if barrier := summary['client_server_barrier']:
    lines.append(
      f'Client-Server Barrier: {_number(barrier["loss"]["mean"], ".4f")} nats '
      f'per target, over {barrier["num_clients"]} clients: global loss '
      f'{_number(barrier["global_loss"]["mean"], ".4f")} minus local loss '
      f'{_number(barrier["local_loss"]["mean"], ".4f")}'
    )
  effective = summary['effective_clients']
  if effective and effective['mean'] is not None:
    lines.append(
      f'Effective clients per weight: {effective["mean"]:.1f} '
      f'({effective["of_weights"]:.1f} by client weights). Weights that no '
      f'client informs: {effective["uninformed_fraction"]:.1%}'
    )
  for line in lines:
    Console().print(line, highlight=False)


def _number(value, spec: str) -> str:
  return '-' if value is None else format(value, spec)
