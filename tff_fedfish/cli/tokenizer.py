r"""Learn a vocabulary from a grouped corpus, or show what one does.

Examples:
  fedfish tokenizer train --data corpora/debian \
      --output corpora/debian_vocabulary
  fedfish tokenizer show corpora/debian_vocabulary --text 'Some text.'
"""

import argparse
import resource
import sys

from tff_fedfish.files import require_usable_output

SUMMARY = 'learn a vocabulary from a grouped corpus, or show one'

_SAMPLE_TEXT = 'Pretraining language models on 1,000 web domains.'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish tokenizer`."""
  subparsers = parser.add_subparsers(
    dest='action', title='actions', metavar='ACTION', required=True
  )
  train, show = (
    subparsers.add_parser(name, help=text, description=text, allow_abbrev=False)
    for name, text in (
      ('train', 'learn a WordPiece vocabulary from a grouped corpus'),
      ('show', 'show size, special ids and a sample encoding of a vocabulary'),
    )
  )
  train.add_argument(
    '--data',
    required=True,
    metavar='DIR',
    help='a directory that `fedfish group` wrote',
  )
  train.add_argument(
    '--output', required=True, metavar='DIR', help='new or empty directory'
  )
  train.add_argument(
    '--vocabulary_size',
    type=int,
    default=2048,
    metavar='N',
    help='pieces, special ones included, from 256 to 1,000,000 (default: '
    '%(default)s)',
  )
  train.add_argument(
    '--keep_case',
    action='store_true',
    help='tell upper-case letters and accents apart (default: lower-case)',
  )
  train.add_argument(
    '--max_documents_per_client',
    type=int,
    metavar='N',
    help='read at most N documents of a client, chosen by a hash, so that '
    'the largest do not dominate (default: all)',
  )
  show.add_argument(
    'path',
    metavar='PATH',
    help='a directory that `train` wrote or that holds a tokenizer.json of '
    'Hugging Face, a WordPiece vocabulary (.txt) or a SentencePiece model '
    '(.model)',
  )
  show.add_argument(
    '--text',
    default=_SAMPLE_TEXT,
    help='text to encode (default: %(default)r)',
  )


def run(arguments: argparse.Namespace) -> int:
  """Runs the action that was named."""
  if arguments.action == 'train':
    return _train(arguments)
  return _show(arguments)


def _train(arguments: argparse.Namespace) -> int:
  # Light imports: arguments are checked before TensorFlow is loaded.
  from tff_fedfish.data import tokenizers, vocabulary_training
  from tff_fedfish.data.grouped_corpus import GroupedCorpus
  from tff_fedfish.progress import Progress

  output = require_usable_output(arguments.output, '--output')
  vocabulary_training.check_vocabulary_size(arguments.vocabulary_size)
  corpus = GroupedCorpus(arguments.data)
  # All shards are read side by side; systems begin with 1,024 files.
  _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
  with Progress('count words', len(corpus.client_ids), unit='client') as bar:
    words = vocabulary_training.count_corpus_words(
      corpus,
      max_documents_per_client=arguments.max_documents_per_client,
      on_client=bar.advance,
    )
  vocabulary = vocabulary_training.train_vocabulary(
    words.counts,
    vocabulary_size=arguments.vocabulary_size,
    lower_case=not arguments.keep_case,
    on_step=lambda line: print(f'learn pieces: {line}', file=sys.stderr),
  )
  tokenizer = tokenizers.WordPieceTokenizer(
    vocabulary.to_bytes(), str(output), lower_case=not arguments.keep_case
  )
  tokenizer.save(output)
  unknown = vocabulary.num_unknown_words / vocabulary.num_words
  print(
    f'{words.num_documents:,} documents of {len(corpus.client_ids):,} clients '
    f'({words.num_capped_documents:,} left out by '
    '--max_documents_per_client)\n'
    f'{vocabulary.num_words:,} words and punctuation marks, '
    f'{vocabulary.num_distinct_words:,} distinct '
    f'({words.num_forgotten_words:,} rare ones not counted, to bound memory)\n'
    f'{tokenizer.size:,} pieces ({vocabulary.num_unused:,} unused); '
    f'{unknown:.3%} of the words are unknown (rare characters, '
    'or more than 100 bytes)\n'
    f'Written to {output}'
  )
  return 0


def _show(arguments: argparse.Namespace) -> int:
  from tff_fedfish import corpora
  from tff_fedfish.data.tokenizers import load_tokenizer
  from tff_fedfish.printing import print_facts

  tokenizer = load_tokenizer(corpora.vocabulary_path(arguments.path))
  [token_ids] = tokenizer.encode_batch([arguments.text])
  facts = {
    'vocabulary': arguments.path,
    'kind': tokenizer.kind,
    'size': f'{tokenizer.size:,}',
    'lower case': 'yes' if tokenizer.lower_case else 'no',
  }
  for name in ('end_of_text', 'padding', 'unknown'):
    token_id = getattr(tokenizer, f'{name}_id')
    facts[name.replace('_', ' ')] = (
      '-'
      if token_id is None
      else f'{token_id} {tokenizer.pieces([token_id])[0]}'
    )
  facts |= {
    'sha256': tokenizer.sha256,
    'text': arguments.text,
    'token ids': ' '.join(map(str, token_ids)),
    'pieces': ' '.join(tokenizer.pieces(token_ids)),
    'decoded': tokenizer.decode(token_ids),
  }
  print_facts(facts.items())
  return 0
