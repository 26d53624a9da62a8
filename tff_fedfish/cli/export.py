r"""Write a checkpoint's model for use without fedfish, with its model card.

Examples:
  fedfish export --checkpoint runs/mine --output models/mine
  fedfish export --checkpoint runs/mine/checkpoints/round_00000020 \
      --output models/round_20 --format safetensors
  fedfish export --checkpoint runs/mine --output models/mine_gpt2 \
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
    help='a checkpoint, or a run directory (its last good one)',
  )
  parser.add_argument(
    '--output', required=True, metavar='DIR', help='new or empty directory'
  )
  parser.add_argument(
    '--format',
    metavar='NAME,...',
    help='saved_model, safetensors or both (default: both); '
    'huggingface: as transformers reads it',
  )
  parser.add_argument(
    '--client_id',
    metavar='TEXT',
    help='id of the client whose personal model is exported, as per_client.csv '
    'of `fedfish evaluate` has it; required with methods with personal models',
  )


def run(arguments: argparse.Namespace) -> int:
  """Writes the model and says what it is."""
  from tff_fedfish.exporting.export import export

  written = export(
    arguments.checkpoint,
    arguments.output,
    arguments.format and arguments.format.split(','),
    client=arguments.client_id,
  )
  num_weights = sum(w.size for w in written.model.weights.values())
  print(
    f'Round {written.model.round_num:,}, {num_weights:,} parameters: '
    f'{written.directory}'
  )
  if written.remark is not None:
    print(
      f'The model card says little of the corpus: {written.remark}. Name it in '
      'README.md.'
    )
  return 0
