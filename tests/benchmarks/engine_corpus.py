"""Parts of `make bench-engine` on a corpus that ships with the project."""

import subprocess
import sys

from benchmarks.engine_figures import Figure, Goal, absent, measured, ratio
from benchmarks.engine_processes import environment, once, take_turns
from benchmarks.engine_settings import BFLOAT16, NO_BFLOAT16, Settings, say

from tff_fedfish.cli import demo


def input_pipeline(settings: Settings) -> list[Figure]:
  """Sequences/s that reach the trainer, and that it trains."""
  part, workload = 'input', settings.workload
  values = {
    'data.sequence_length': workload.sequence_length,
    'model.preset': workload.preset,
    # That of the vocabulary, for any preset.
    'model.vocabulary_size': 2048,
    'cohorts.cohort_size': workload.num_clients,
    'client_work.local_batch_size': workload.local_batch_size,
    'client_work.max_sequences_per_client': workload.local_batch_size
    * workload.num_local_steps,
    'algorithm.name': 'fed_avg',
  }
  options = {
    'corpus': grouped_corpus(settings),
    'overrides': [f'--config.{name}={value}' for name, value in values.items()],
  }
  variants = {
    what: ('input', options | {'what': what})
    for what in ('input', 'cached_input', 'training')
  }
  turns = take_turns(settings, variants, repeats=settings.repeats)
  rates = {
    what: [turn['num_sequences'] / turn['seconds'] for turn in turns[what]]
    for what in variants
  }
  note = f'{workload.preset} with 2,048 token ids'
  return [
    measured(part, 'input, clients tokenized', rates['input'], 'seq./s'),
    measured(part, 'input, clients cached', rates['cached_input'], 'seq./s'),
    measured(part, 'training', rates['training'], 'seq./s', note=note),
    ratio(
      part,
      'input, clients tokenized / training',
      rates['input'],
      rates['training'],
      Goal(5),
    ),
  ]


def bf16_loss(settings: Settings) -> list[Figure]:
  """Whether bfloat16 loses more than another seed would.

  Trains the demo's corpus with the demo's config, three times in float32 with
  initial weights of three seeds, and once in bfloat16 with those of the first.
  """
  part, preset = 'bf16_loss', 'tiny'
  if not settings.measures_bfloat16:
    return [absent(part, 'all', NO_BFLOAT16)]
  num_rounds = settings.scaled(200)
  corpus = grouped_corpus(settings)
  losses = {}
  for dtype, seed in (
    ('float32', 1),
    (BFLOAT16, 1),
    ('float32', 2),
    ('float32', 3),
  ):
    values = {
      'training.num_rounds': num_rounds,
      'model.preset': preset,
      'model.compute_dtype': dtype,
      'seeds.model_seed': seed,
      'evaluation.every_num_rounds': 0,
      'checkpoints.every_num_rounds': 0,
    }
    options = {
      'corpus': corpus,
      'overrides': [f'--config.{key}={value}' for key, value in values.items()],
    }
    workdir = settings.scratch / f'{dtype}_{seed}'
    turn = once(settings, 'training', options, workdir=str(workdir))
    losses[dtype, seed] = turn['loss']
    say(f'{dtype}, seed {seed}: {turn["loss"]:.4f} in {turn["seconds"]:.0f} s')
  float32 = [loss for (dtype, _), loss in losses.items() if dtype == 'float32']
  spread = max(float32) - min(float32)
  difference = abs(losses[BFLOAT16, 1] - losses['float32', 1])
  rounds = f'last quarter of {num_rounds} rounds'
  return [
    measured(
      part, f'{preset} float32, three seeds', float32, 'nats', note=rounds
    ),
    measured(
      part,
      f'{preset} bfloat16, the first seed',
      [losses[BFLOAT16, 1]],
      'nats',
      note=rounds,
    ),
    ratio(
      part,
      'bfloat16 - float32, over the spread of seeds',
      [difference],
      [spread],
      Goal(1, is_at_least=False),
    ),
  ]


def grouped_corpus(settings: Settings) -> str:
  """Returns a directory: the shipped corpus, grouped by the real command."""
  directory, command = next(
    (directory, command)
    for directory, command in demo.group_commands(settings.scratch).items()
    if directory.name == demo.PRETRAINING_NAME
  )
  if not directory.exists():
    directory.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
      [sys.executable, '-m', 'tff_fedfish', *command],
      env=environment(),
      stdin=subprocess.DEVNULL,
      capture_output=True,
      check=True,
    )
  return str(directory)
