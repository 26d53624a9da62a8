r"""Write a checkpoint's model for use without fedfish, with its model card.

Examples:
  fedfish export --checkpoint runs/mine --output exports/mine
  fedfish export --checkpoint runs/mine/checkpoints/round_00000020 \
      --output exports/round_20 --format safetensors
  fedfish export --checkpoint runs/mine --output exports/mine_gpt2 \
      --format huggingface

Writes a TensorFlow SavedModel, the weights as safetensors, config.json,
README.md (the model card), SHA256SUMS and, of a language model, the vocabulary.
docs/export.md says what is in them. Read the model card before you publish the
model.
"""

import argparse

SUMMARY = "write a checkpoint's model for use elsewhere, with its model card"


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish export`."""
  parser.add_argument(
    '--checkpoint',
    required=True,
    metavar='DIR',
    help='a checkpoint, a run directory (its last good one), or RUN@best, '
    'its round with the lowest loss',
  )
  parser.add_argument(
    '--output', required=True, metavar='DIR', help='new or empty directory'
  )
  parser.add_argument(
    '--format',
    default='saved_model,safetensors',
    metavar='NAME,...',
    help='saved_model, safetensors, or huggingface, which transformers reads '
    '(default: saved_model,safetensors)',
  )
  parser.add_argument(
    '--client_id',
    metavar='TEXT',
    help='export the personal model of this client; its id as in '
    'per_client.csv of `fedfish evaluate`; required by methods with personal '
    'models',
  )


def run(arguments: argparse.Namespace) -> int:
  """Writes the model and says what it is."""
  from tff_fedfish.exporting.export import export

  directory, model = export(
    arguments.checkpoint,
    arguments.output,
    arguments.format.split(','),
    client=arguments.client_id,
  )
  num_weights = sum(weight.size for weight in model.weights.values())
  print(f'Round {model.round_num:,}, {num_weights:,} parameters: {directory}')
  return 0
