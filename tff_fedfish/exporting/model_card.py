"""The model card: what an exported model is, in words and numbers.

After Mitchell et al. (2019), "Model Cards for Model Reporting". What a run
cannot know, such as the licence of its data, is left to whoever publishes the
model, in so many words.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from tff_fedfish.exporting import image_model_card, language_model_card
from tff_fedfish.exporting.card_text import prose, table
from tff_fedfish.exporting.run_facts import RunFacts
from tff_fedfish.exporting.trained_model import TrainedModel
from tff_fedfish.reporting.evaluations import Interval

# Of the config, what fixes the weights beside model, data and length.
_SECTIONS = (
  'algorithm',
  'client_work',
  'server',
  'cohorts',
  'client_splits',
  'partition',
  'seeds',
)
# What one method or one optimizer alone reads.
_FISHER_NAMES = (
  'fisher_estimator',
  'fisher_reduction',
  'fisher_normalization',
  'relative_floor',
  'ragged_correction',
)
_ADAM_NAMES = ('beta_1', 'beta_2', 'epsilon')

_PRIVACY = """\
- Federated learning was simulated: the {data} of all clients lay on the
  machines that trained the model. Nothing was hidden from whoever ran them.
- There is no formal guarantee: updates were not clipped and no noise was added,
  so the model is not differentially private.
- The server took sums over the clients of a round, of their weighted model
  deltas and, with FedFish, of their Fisher diagonals. The sums were formed in
  the clear, without secure aggregation.
{leak}"""

_WHOLE_FILES = """\
`sha256sum --check SHA256SUMS` says whether the files are whole. `config.json`
holds the shape of the model and the settings of its run.
"""

_LICENCE = """\
A run does not record the licence of its data. It applies to the {data}, and may
ask for attribution, or for the same licence, where something is made of them.
Look it up and name it here, and a licence for the weights, before you publish
the model.
"""


def model_card(
  model: TrainedModel, facts: RunFacts, formats: Sequence[str]
) -> str:
  """Returns the card, as Markdown.

  Args:
    model: The model.
    facts: What its run knows, at the model's round.
    formats: What it is exported as: 'saved_model', 'safetensors' or both.
  """
  is_of_images = model.config.data.holds_images
  kind = image_model_card if is_of_images else language_model_card
  sections = {
    f'# {kind.TITLE}: {facts.method}, round {model.round_num}': (
      kind.introduction(model)
    ),
    '## Data': kind.data(model, facts),
    '## Training': _training(model, facts, kind),
    '## Scores': _scores(model, facts, kind),
    '## Privacy': [_PRIVACY.format(data=kind.DATA, leak=kind.LEAK)],
    '## How to load it': [_WHOLE_FILES, *kind.loading(model, formats)],
    '## Licence': [_LICENCE.format(data=kind.DATA)],
  }
  paragraphs = []
  for heading, section in sections.items():
    paragraphs += [heading, *(paragraph.rstrip('\n') for paragraph in section)]
  return '\n\n'.join(paragraphs) + '\n'


def _training(model, facts, kind) -> Iterator[str]:
  yield prose(
    f'{facts.method}, round {model.round_num:,} of '
    f'{model.config.training.num_rounds:,}. Until there '
    f'{facts.num_participations:,} clients took part, counted again in every '
    f'round, and {facts.num_tokens:,} {kind.UNIT}s were trained on, over all '
    'local epochs.'
  )
  yield table(('setting', 'value'), _settings(model.config))


def _settings(config) -> Iterator[tuple[str, Any]]:
  unused = set()
  if config.partition.scheme is None:
    unused.add('partition_seed')
  if config.algorithm.name != 'fed_fish':
    unused.update(_FISHER_NAMES)
  if config.server.optimizer != 'adam':
    unused.update(_ADAM_NAMES)
  for section in _SECTIONS:
    if section == 'partition' and config.partition.scheme is None:
      continue
    for name, value in dataclasses.asdict(getattr(config, section)).items():
      # Of a partition, what its scheme does not read is None.
      if name not in unused and (section, value) != ('partition', None):
        yield f'`{section}.{name}`', value


def _scores(model, facts, kind) -> Iterator[str]:
  yield f'From metrics.csv, at round {model.round_num:,}:'
  yield table(('metric', 'value'), _metrics(facts.last_row))
  held_out = facts.held_out_row
  if held_out is not None and held_out['round'] != model.round_num:
    yield f'Held-out clients were last scored at round {held_out["round"]:,}:'
    yield table(('metric', 'value'), _metrics(held_out, 'held_out/'))
  if facts.evaluations:
    yield prose(
      'Means over clients, each of which fine-tuned the model on a share of '
      f'its data; loss in nats per {kind.UNIT}, with its 95 % interval:'
    )
    yield table(
      ('evaluation', 'clients', 'data used', 'loss', 'interval', 'accuracy'),
      _evaluations(facts.evaluations),
    )
  for evaluation in facts.evaluations:
    barrier = evaluation.barrier.get('loss')
    if barrier is not None:
      yield prose(
        f'Client-Server Barrier (`{evaluation.name}`): {barrier.mean:.4f} nats '
        f'per {kind.UNIT}; lower is better.'
      )
  if facts.num_other_evaluations:
    yield (
      f'Evaluations of other rounds in the run: {facts.num_other_evaluations}.'
    )


def _metrics(row, prefix='') -> Iterator[tuple[str, Any]]:
  for name, value in row.items():
    if value is not None and name != 'round' and name.startswith(prefix):
      yield f'`{name}`', value


def _evaluations(evaluations) -> Iterator[tuple]:
  for evaluation in evaluations:
    for fraction, score in evaluation.fractions.items():
      yield (
        f'`{evaluation.name}` ({evaluation.kind}, `{evaluation.corpus}`)',
        '-' if evaluation.num_clients is None else evaluation.num_clients,
        f'{fraction:.0%}',
        f'{score.loss.mean:.4f}' if score.loss else '-',
        _interval(score.loss),
        f'{score.accuracy.mean:.2%}' if score.accuracy else '-',
      )


def _interval(loss: Interval | None) -> str:
  if loss is None or loss.ci_low is None or loss.ci_high is None:
    return '-'
  return f'{loss.ci_low:.4f} to {loss.ci_high:.4f}'
