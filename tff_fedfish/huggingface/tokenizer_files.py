"""The files that make `AutoTokenizer` read a vocabulary of ours."""

import pathlib

from tff_fedfish import files
from tff_fedfish.data import tokenizer_json, tokenizers


def write(
  tokenizer: tokenizers.Tokenizer,
  directory: pathlib.Path,
  *,
  sequence_length: int,
) -> None:
  """Writes `tokenizer.json` and `tokenizer_config.json`.

  `sequence_length` is the most tokens that the model takes.

  Raises:
    UserError: If the library has no such vocabulary.
  """
  kind = tokenizer.kind
  # Late: only exports need it.
  if kind == tokenizers.WORDPIECE:
    from tff_fedfish.huggingface import wordpiece_json

    pieces = tokenizer.pieces(range(tokenizer.size))
    built = wordpiece_json.build(pieces, lower_case=tokenizer.lower_case)
    text = built.to_str(pretty=True)
  elif kind == tokenizers.SENTENCEPIECE:
    from tff_fedfish.huggingface import sentencepiece_json

    text = sentencepiece_json.build(tokenizer.vocabulary).to_str(pretty=True)
  else:
    text = tokenizer.vocabulary.decode()
  with files.write_atomically(directory / tokenizers.METADATA_FILE) as file:
    file.write(text)
  special = {
    # In training, too, a document follows the end of another.
    'bos_token': tokenizer.end_of_text_id,
    'eos_token': tokenizer.end_of_text_id,
    'pad_token': tokenizer.padding_id,
    'unk_token': tokenizer.unknown_id,
  }
  files.write_json(
    directory / tokenizer_json.CONFIG_FILE,
    {
      'tokenizer_class': 'PreTrainedTokenizerFast',
      'model_max_length': sequence_length,
      # GPT-2 would embed the types of tokens, too.
      'model_input_names': ['input_ids', 'attention_mask'],
      'clean_up_tokenization_spaces': False,
      # A text that spells a special piece does not hold it. Vocabularies of the
      # library itself read it as that piece.
      'split_special_tokens': kind != tokenizers.TOKENIZER_JSON,
      **{
        name: tokenizer.pieces([token_id])[0]
        for name, token_id in special.items()
        if token_id is not None
      },
    },
  )
