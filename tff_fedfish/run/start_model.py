"""The model from which a new run takes its weights."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

from models.model_shapes import weight_shapes
from models.transformer_config import TransformerConfig
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.tokenizers import Tokenizer, load_tokenizer
from tff_fedfish.errors import UserError
from tff_fedfish.huggingface import pretrained
from tff_fedfish.run import client_data, divergence, run_directory
from tff_fedfish.run.tensor_files import shape_text

_OPTION = '--config.training.start_from'
_HEAD = ('head/kernel', 'head/bias')


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartModel:
  """A checked model, and which of its tensors fit the new one."""

  checkpoint: pathlib.Path
  """The checkpoint, or the directory that transformers reads."""
  shapes: Mapping[str, tuple[int, ...]]
  """Name -> shape of all weights of its model, in order."""
  taken: tuple[str, ...]
  """Tensors that the new run begins with."""
  drawn: tuple[str, ...]
  """Tensors of the head, drawn as without a start."""
  pretrained: TransformerConfig | None = None
  """Shape of the model in a directory of transformers. None: a checkpoint."""

  def describe(self) -> str:
    """Returns what is taken and what is drawn, in three lines."""
    return (
      f'Initial weights from {str(self.checkpoint)!r}\n'
      f'  taken: {", ".join(self.taken) or "none"}\n'
      f'  drawn: {", ".join(self.drawn) or "none"}'
    )


def check(config: TrainConfig, tokenizer: Tokenizer | None) -> StartModel:
  """Checks the model `training.start_from` of a config; reads no tensors.

  A head of another shape is drawn: kernel and bias together, as neither has a
  meaning without the other.

  Args:
    config: The config of the new run.
    tokenizer: Its vocabulary; None with images.

  Raises:
    UserError: If it is no model, is damaged or does not fit its run, or if
      a tensor other than the head's has another shape, or the number of
      attention heads or the vocabulary differs.
  """
  start = config.training.start_from
  if pretrained.is_pretrained(start):
    source = _pretrained_source(config, start)
  else:
    source = _checkpoint_source(start)
  wanted = weight_shapes(config.model_shape())
  is_head_drawn = _has_other_head(source, wanted)
  if config.model.num_heads != source.num_heads:
    # Kernels have the same shapes with any number.
    raise UserError(
      f'`{_OPTION}`: `config.model.num_heads` must be {source.num_heads}, as '
      f'in {str(source.path)!r}, found {config.model.num_heads}. Set it, or '
      'name another checkpoint.'
    )
  fingerprint = run_directory.vocabulary_fingerprint
  if fingerprint(tokenizer) not in map(fingerprint, source.tokenizers):
    raise UserError(
      f'`{_OPTION}`: {str(source.path)!r} was trained with another vocabulary '
      f'than {config.data.vocabulary!r} holds. Set `--config.data.vocabulary` '
      f'to {str(source.vocabulary)!r}, or name another checkpoint.'
    )
  drawn = tuple(name for name in wanted if is_head_drawn and name in _HEAD)
  return StartModel(
    checkpoint=source.path,
    shapes=source.shapes,
    taken=tuple(name for name in wanted if name not in drawn),
    drawn=drawn,
    pretrained=source.pretrained,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Source:
  """The model to start from, described without its tensors."""

  path: pathlib.Path
  shapes: Mapping[str, tuple[int, ...]]
  num_heads: int | None
  vocabulary: pathlib.Path
  tokenizers: Sequence[Tokenizer | None]
  """The vocabularies that it may be trained with."""
  pretrained: TransformerConfig | None = None


def _pretrained_source(config, start):
  path = pathlib.Path(start).resolve()
  shape = pretrained.read_shape(path, _OPTION, config.data.sequence_length)
  pretrained.check_weights(path)
  vocabularies = pretrained.vocabularies(path, _OPTION)
  return _Source(
    path=path,
    shapes=weight_shapes(shape),
    num_heads=shape.num_heads,
    vocabulary=vocabularies[0],
    tokenizers=[load_tokenizer(vocabulary) for vocabulary in vocabularies],
    pretrained=shape,
  )


def _checkpoint_source(start):
  path = divergence.resolve_checkpoint(start, _OPTION)
  run = path.parent.parent
  config = run_directory.read_config(run)
  checkpoint, tokenizer = client_data.open_checkpoint(config, path)
  phase_config = config.in_round(checkpoint.round_num)
  if phase_config.method.held_model is not None:
    raise UserError(
      f'`{_OPTION}`: {str(path)!r} is of phase {phase_config.phase.name!r} of '
      f'{config.algorithm.name!r}, which holds no network of the config. Name '
      'a checkpoint of an earlier phase.'
    )
  return _Source(
    path=path,
    shapes=weight_shapes(run_directory.model_shape(config, checkpoint)),
    num_heads=config.model.num_heads,
    vocabulary=run / run_directory.VOCABULARY_NAME,
    tokenizers=[tokenizer],
  )


def _has_other_head(source, wanted):
  """Says whether heads differ; raises UserError where another tensor does."""
  different = [
    name
    for name in dict.fromkeys((*wanted, *source.shapes))
    if source.shapes.get(name) != wanted.get(name)
  ]
  remedy = (
    'Name a checkpoint of the same model; only the shape of a head may differ.'
  )
  if source.pretrained is not None:
    remedy = (
      "Set `--config.model.preset` to 'from_directory', no sizes, and "
      "`--config.model.position_embedding` to 'learned'."
    )
  for name in different:
    if name not in _HEAD or name not in source.shapes or name not in wanted:
      raise UserError(
        f'`{_OPTION}`: tensor {name!r} must have shape '
        f'{shape_text(wanted.get(name))} as in the model of this run, but in '
        f'{str(source.path)!r} it has {shape_text(source.shapes.get(name))}. '
        f'{remedy}'
      )
  return bool(different)
