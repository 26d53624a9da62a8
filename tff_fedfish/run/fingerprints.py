"""Fingerprints of corpus, vocabulary and settings that a checkpoint keeps.

A checkpoint names them by SHA-256. The settings are those that may not change
when a run is resumed, as canonical JSON. Left out are those at their default,
so that a setting that is added later leaves the fingerprint of earlier runs as
it is. A default that changes would not.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.tokenizers import Tokenizer
from tff_fedfish.errors import UserError

MAY_CHANGE = frozenset(
  {
    'training.num_rounds',
    'training.max_non_finite_rounds',
    'checkpoints.every_num_rounds',
    'checkpoints.keep_last',
    'checkpoints.keep_every_num_rounds',
    'engine.num_workers',
    'engine.gpus_per_worker',
    'engine.ray_address',
    'engine.quorum',
    # They may have moved; their content is compared.
    'data.directory',
    'data.vocabulary',
  }
)
"""Settings that may differ when a run is resumed."""

_VOCABULARY = 'vocabulary_fingerprint'
_SETTINGS = 'settings_fingerprint'


def contents(
  config: TrainConfig, corpus_fingerprint: str, tokenizer: Tokenizer | None
) -> dict[str, str | None]:
  """Returns what a checkpoint of a run keeps beside its tensors."""
  return {
    'algorithm': config.algorithm.name,
    'corpus_fingerprint': corpus_fingerprint,
    _VOCABULARY: vocabulary_fingerprint(tokenizer),
    _SETTINGS: settings_fingerprint(config),
  }


def settings_fingerprint(config: TrainConfig) -> str:
  """Returns the SHA-256 of the settings that fix a run's numbers."""
  values = {}
  for part in dataclasses.fields(config):
    section = getattr(config, part.name)
    for field in dataclasses.fields(section):
      name = f'{part.name}.{field.name}'
      value = getattr(section, field.name)
      if name not in MAY_CHANGE and value != field.default:
        values[name] = value
  return _sha256(values)


def vocabulary_fingerprint(tokenizer: Tokenizer | None) -> str | None:
  """Returns the SHA-256 of a vocabulary and how it is read; None for None."""
  if tokenizer is None:
    return None
  return _sha256(
    {
      name: getattr(tokenizer, name)
      for name in ('kind', 'sha256', 'lower_case', 'end_of_text_id')
    }
  )


def require_same_run(
  checkpoint: str | os.PathLike,
  found: Mapping[str, Any],
  config: TrainConfig,
  tokenizer: Tokenizer | None,
  *,
  vocabulary: str | os.PathLike | None,
) -> None:
  """Raises UserError unless a checkpoint was made with these inputs.

  Args:
    checkpoint: The checkpoint's path, named in errors.
    found: `contents` of the checkpoint. One from before they named vocabulary
      and settings cannot be checked; a warning goes to standard error.
    config: The config of its run.
    tokenizer: The tokenizer that would be used with it.
    vocabulary: Its directory, named in errors.
  """
  checkpoint = pathlib.Path(checkpoint)
  if _SETTINGS not in found:
    print(
      f'fedfish: warning: the checkpoint {str(checkpoint)!r} does not say with '
      'which vocabulary and settings it was made; they are not checked.',
      file=sys.stderr,
    )
    return
  if found.get(_VOCABULARY) != vocabulary_fingerprint(tokenizer):
    raise UserError(
      f'The checkpoint {str(checkpoint)!r} was made with another vocabulary '
      f'than {str(vocabulary)!r} holds. Restore the vocabulary of the run.'
    )
  if found[_SETTINGS] != settings_fingerprint(config):
    raise UserError(
      f'The checkpoint {str(checkpoint)!r} was made with other settings than '
      f'{str(checkpoint.parent.parent / "config.json")!r} holds. Restore that '
      'file.'
    )


def _sha256(values):
  text = json.dumps(values, sort_keys=True, separators=(',', ':'))
  return hashlib.sha256(text.encode()).hexdigest()
