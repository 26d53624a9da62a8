"""The model from which a new run takes its weights."""

import dataclasses
import pathlib
from collections.abc import Mapping

from models.model_shapes import weight_shapes
from models.transformer_config import TransformerConfig
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.tokenizers import Tokenizer, load_tokenizer
from tff_fedfish.errors import UserError
from tff_fedfish.huggingface import pretrained
from tff_fedfish.run import (
  divergence,
  run_directory,
  run_inputs,
)

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
  """Shape of the model in such a directory; None: it is a checkpoint."""

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
  start, shape = config.training.start_from, None
  if pretrained.is_pretrained(start):
    path = pathlib.Path(start).resolve()
    shape = pretrained.read_shape(path, _OPTION, config.data.sequence_length)
    shapes, num_heads = weight_shapes(shape), shape.num_heads
    pretrained.check_weights(path, shape)
    vocabularies = pretrained.vocabularies(path, _OPTION)
    tokenizers = map(load_tokenizer, vocabularies)
  else:
    path = divergence.resolve_checkpoint(start, _OPTION)
    run = path.parent.parent
    trained = run_directory.read_config(run)
    found, trained_tokenizer = run_inputs.open_checkpoint(trained, path)
    _require_network(trained.in_round(found.round_num), path)
    shapes = weight_shapes(run_directory.model_shape(trained, found))
    num_heads = trained.model.num_heads
    vocabularies = [run / run_directory.VOCABULARY_NAME]
    tokenizers = [trained_tokenizer]
  wanted = weight_shapes(config.model_shape())
  different = [
    name
    for name in dict.fromkeys((*wanted, *shapes))
    if shapes.get(name) != wanted.get(name)
  ]
  remedy = (
    'Name a checkpoint of the same model; only the shape of a head may differ.'
  )
  if shape is not None:
    remedy = (
      "Set `--config.model.preset` to 'from_directory', no sizes, and "
      "`--config.model.position_embedding` to 'learned'."
    )
  for name in different:
    if name not in _HEAD or name not in shapes or name not in wanted:
      raise UserError(
        f'`{_OPTION}`: tensor {name!r} must have shape '
        f'{_show(wanted.get(name))} as in the model of this run, but in '
        f'{str(path)!r} it has {_show(shapes.get(name))}. {remedy}'
      )
  if config.model.num_heads != num_heads:
    # Kernels have the same shapes with any number.
    raise UserError(
      f'`{_OPTION}`: `config.model.num_heads` must be {num_heads}, as in '
      f'{str(path)!r}, found {config.model.num_heads}. Set it, or name '
      'another checkpoint.'
    )
  fingerprint = run_directory.vocabulary_fingerprint
  if fingerprint(tokenizer) not in map(fingerprint, tokenizers):
    raise UserError(
      f'`{_OPTION}`: {str(path)!r} was trained with another vocabulary than '
      f'{config.data.vocabulary!r} holds. Set `--config.data.vocabulary` to '
      f'{str(vocabularies[0])!r}, or name another checkpoint.'
    )
  drawn = tuple(name for name in wanted if different and name in _HEAD)
  taken = tuple(name for name in wanted if name not in drawn)
  return StartModel(
    checkpoint=path, shapes=shapes, taken=taken, drawn=drawn, pretrained=shape
  )


def _show(shape):
  return 'none' if shape is None else str(list(shape))


def _require_network(trained, path):
  """Raises UserError in a phase that trains another model than the config's."""
  if trained.method.model is not None:
    raise UserError(
      f'`{_OPTION}`: {str(path)!r} is of phase {trained.phase.name!r} of '
      f'{trained.algorithm.name!r}, which holds no network of the config. Name '
      'a checkpoint of an earlier phase.'
    )
