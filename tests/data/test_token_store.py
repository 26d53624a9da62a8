"""Token stores: the rows of their corpus, written whole, checked, refused."""

import errno
import json
import os
import shutil

import buckets
import numpy as np
import pytest
import small_runs
import token_stores
from grouping_jobs import contents
from token_stores import PIECES

from tff_fedfish.data import token_store, tokenize_corpus, tokenizers
from tff_fedfish.data.client_sequences import ClientSequences
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.stored_sequences import StoredSequences
from tff_fedfish.data.token_store import TokenStore
from tff_fedfish.data.tokenize_corpus import write_token_store
from tff_fedfish.errors import FailedError, UserError


def _documents():
  """Letters of documents by client; client f has 100, in several records."""
  random = np.random.RandomState(5)
  num_documents = {'a': 1, 'b': 3, 'c': 12, 'd': 40, 'e': 1, 'f': 100}
  documents = {
    client: [
      ''.join(random.choice(list('abcdefghij'), random.randint(12)))
      for _ in range(number)
    ]
    for client, number in num_documents.items()
  }
  # An end token, and three of them.
  return documents | {'e': [''], 'b': ['', '', '']}


@pytest.fixture(name='stored', scope='module')
def _stored(tmp_path_factory):
  directory = tmp_path_factory.mktemp('stored')
  return token_stores.tokenize(directory, _documents(), max_record_bytes=1000)


@pytest.fixture(name='copy')
def _copy(stored, tmp_path):
  """A copy of the store, to be damaged."""
  return shutil.copytree(stored.store.directory, tmp_path / 'copy')


def _both(stored, sequence_length, **options):
  options['sequence_length'] = sequence_length
  return (
    ClientSequences(stored.corpus, stored.tokenizer, **options),
    StoredSequences(stored.store, stored.tokenizer, **options),
  )


def _assert_equal(found, expected):
  for name in ('tokens', 'num_targets', 'is_repeated'):
    one, other = getattr(found, name), getattr(expected, name)
    np.testing.assert_array_equal(one, other)
    assert getattr(one, 'dtype', None) == getattr(other, 'dtype', None)
  for name in ('num_dropped_sequences', 'num_dropped_tokens', 'num_tokens'):
    assert getattr(found, name) == getattr(expected, name), name
  assert found.num_lost_tokens == expected.num_lost_tokens


class TestRows:
  def test_it_is_the_corpus(self, stored):
    corpus, store, _ = stored
    assert list(store.client_ids) == list(corpus.client_ids)
    assert store.fingerprint == corpus.fingerprint
    assert store.manifest == corpus.manifest
    index = (corpus.directory / 'index.parquet').read_bytes()
    assert (store.directory / 'corpus/index.parquet').read_bytes() == index
    # Client f is in several records.
    assert sum(shard.num_records for shard in corpus.manifest.shards) > 6
    with pytest.raises(KeyError, match="b'g' is not a client of"):
      store.documents(b'g')

  def test_by_hand(self, tmp_path):
    documents = {'x': ['ab', '', 'c'], 'y': ['jj']}
    store = token_stores.tokenize(tmp_path, documents, num_shards=1).store
    # Pieces a to j are 3 to 12; 2 ends a document.
    assert list(store.tokens) == [3, 4, 2, 2, 5, 2, 12, 12, 2]
    assert store.tokens.dtype == np.uint16
    assert store.streams([1, 0]).tolist() == [[6, 9], [0, 6]]
    read = store.documents(b'x').read([2, 0, 1])
    assert [list(document) for document in read] == [[5], [3, 4], []]
    assert store.num_documents == 4

  @pytest.mark.parametrize('drop_short_block', [False, True])
  @pytest.mark.parametrize('length', [1, 7, 1000])
  def test_all_rows(self, stored, length, drop_short_block):
    options = dict(drop_short_block=drop_short_block)
    demanded, read = _both(stored, length, **options)
    for client_id in stored.corpus.client_ids:
      rows = read.sequences(client_id)
      _assert_equal(rows, demanded.sequences(client_id))
      assert read.num_training_rows(client_id) == len(rows)
      for one, other in zip(
        read.documents(client_id), demanded.documents(client_id), strict=True
      ):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype == np.int32

  @pytest.mark.parametrize('sampling', ['blocks', 'documents'])
  @pytest.mark.parametrize(
    'limits',
    [
      {},
      dict(max_sequences=3),
      dict(stream_length=9),
      dict(max_sequences=8, full_batches_of=4),
      dict(max_sequences=8, full_batches_of=4, repeats_rows=True),
    ],
    ids=['all', 'cap', 'stream', 'full', 'repeated'],
  )
  def test_rows_of_rounds(self, stored, limits, sampling):
    clients = _both(stored, 7, sampling=sampling)
    for client_id in stored.corpus.client_ids:
      for round_num in (1, 2):
        expected, found = (
          of.training_sequences(
            client_id, shuffle_seed=4, round_num=round_num, **limits
          )
          for of in clients
        )
        _assert_equal(found, expected)

  def test_only_chosen_rows_are_read(self, stored, monkeypatch):
    num_read = 0

    class Counted(np.ndarray):
      def __getitem__(self, key):
        nonlocal num_read
        num_read += key.stop - key.start
        return np.asarray(super().__getitem__(key))

    tokens = stored.store.tokens.view(Counted)
    monkeypatch.setattr(stored.store, 'tokens', tokens)
    _, read = _both(stored, 7)
    rows = read.training_sequences(
      b'f', shuffle_seed=4, round_num=1, max_sequences=3
    )
    assert num_read == rows.num_tokens

  def test_many_pieces_take_four_bytes(self, tmp_path):
    fill = (f'p{i}' for i in range(1 << 16))
    pieces = [*PIECES, *fill, 'z']
    stored = token_stores.tokenize(tmp_path, {'x': ['az']}, pieces)
    assert stored.store.tokens.dtype == np.int32
    assert list(stored.store.tokens) == [3, (1 << 16) + len(PIECES), 2]


def _written(stored):
  """Returns the files of a store as they were before it was read."""
  files = contents(stored.store.directory)
  files.pop('.verified.json', None)
  return files


class TestWriting:
  def _write(self, stored, output, **options):
    vocabulary = stored.store.directory.with_name('vocab.txt')
    write_token_store(stored.corpus, vocabulary, output, **options)

  def test_batches_and_workers_change_no_byte(
    self, stored, tmp_path, monkeypatch
  ):
    # Two or three records a batch.
    monkeypatch.setattr(tokenize_corpus, '_BATCH_BYTES', 2000)
    for num_workers in (1, 2):
      output, clients = tmp_path / f'{num_workers}', []
      self._write(
        stored, output, num_workers=num_workers, on_clients=clients.append
      )
      assert contents(output) == _written(stored)
      assert len(clients) > 2 and sum(clients) == 6

  def test_few_records_and_texts_are_in_memory(
    self, stored, tmp_path, monkeypatch
  ):
    # Each record is larger, but client f has texts of less.
    monkeypatch.setattr(tokenize_corpus, '_BATCH_BYTES', 16)
    monkeypatch.setattr(tokenize_corpus, '_BYTES_AHEAD', 0)
    batches = tokenize_corpus._batches
    encode_batch = tokenizers.Tokenizer.encode_batch
    num_pending, most_pending, sizes = 0, 0, []

    def read(corpus):
      nonlocal num_pending, most_pending
      for batch in batches(corpus):
        num_pending += 1
        most_pending = max(most_pending, num_pending)
        yield batch

    def encode(tokenizer, texts):
      # Before the text with which they are enough.
      sizes.append(sum(map(len, texts[:-1])))
      return encode_batch(tokenizer, texts)

    def on_written(_):
      nonlocal num_pending
      num_pending -= 1

    monkeypatch.setattr(tokenize_corpus, '_batches', read)
    monkeypatch.setattr(tokenizers.Tokenizer, 'encode_batch', encode)
    self._write(stored, tmp_path / 'out', num_workers=8, on_clients=on_written)
    assert (num_pending, most_pending) == (0, 1)
    assert len(sizes) > 20 and max(sizes) < 16

  @pytest.mark.parametrize(
    ('error', 'raised'),
    [
      (OSError(errno.ENOSPC, 'No space left on device'), FailedError),
      (KeyboardInterrupt(), KeyboardInterrupt),
    ],
  )
  def test_whole_or_not_at_all(self, stored, tmp_path, error, raised):
    (tmp_path / '.out.mine').write_text('of somebody else')

    def stop(_):
      raise error

    words = r"^The tokens were not written to '.*/out': \[Errno 28\] No space"
    match = words if raised is FailedError else None
    with pytest.raises(raised, match=match):
      self._write(stored, tmp_path / 'out', on_clients=stop)
    assert [path.name for path in tmp_path.iterdir()] == ['.out.mine']

  def test_two_at_once(self, stored, tmp_path):
    output = tmp_path / 'out'

    def finish_another(_):
      if not output.exists():
        self._write(stored, output)

    with pytest.raises(FailedError, match="not written to '.*/out': .* not em"):
      self._write(stored, output, on_clients=finish_another)
    assert list(tmp_path.iterdir()) == [output]
    assert contents(output) == _written(stored)

  def test_a_corpus_in_a_bucket(self, stored, tmp_path, monkeypatch):
    directory = stored.corpus.directory
    buckets.mount(monkeypatch, directory.parent)
    corpus = GroupedCorpus(f'bucket://{directory.name}')
    self._write(stored._replace(corpus=corpus), tmp_path / 'out')
    assert contents(tmp_path / 'out') == _written(stored)
    # Tokens are mapped into memory.
    with pytest.raises(UserError, match='but holds the tokens .* a local disk'):
      token_store.open_text('bucket://tokens')

  def test_an_index_of_other_shards(self, tmp_path):
    one, other = (
      token_stores.tokenize(tmp_path / name, {name: ['a']}, num_shards=1)
      for name in ('x', 'y')
    )
    directory = one.corpus.directory
    shutil.copy(other.corpus.directory / 'index.parquet', directory)
    with pytest.raises(UserError, match='but that names other records. Copy'):
      self._write(
        one._replace(corpus=GroupedCorpus(directory)), tmp_path / 'out'
      )


def _edit(**changes):
  def damage(store):
    path = store / 'token_store.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))

  return damage


def _cut(name):
  def damage(store):
    data = (store / name).read_bytes()
    (store / name).write_bytes(data[:-1])

  return damage


class TestRefused:
  @pytest.mark.parametrize(
    ('damage', 'words'),
    [
      (
        _cut('tokens.bin'),
        r"tokens.bin' must have \d+ bytes, but has \d+. Copy",
      ),
      (_cut('corpus/index.parquet'), 'index.parquet. must have'),
      (lambda store: (store / 'clients.bin').unlink(), 'bin. is missing. Copy'),
      (_edit(corpus_fingerprint='0'), 'cannot be read .`sha256` must be'),
      (_edit(schema_version=2), 'version 1 or older, found 2. Update fedfish'),
    ],
  )
  def test_damage(self, copy, damage, words):
    damage(copy)
    with pytest.raises(UserError, match=words) as caught:
      TokenStore(copy)
    assert '\n' not in str(caught.value)

  def test_verify_reads_every_byte(self, copy):
    read = []
    names = list(TokenStore(copy).description.files)
    token_store.verify(copy, read.append)
    assert len(read) == len(names) == 5
    assert sum(read) == sum((copy / name).stat().st_size for name in names)
    for name in names:
      data = (copy / name).read_bytes()
      (copy / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
      with pytest.raises(UserError, match=f"{name}' must have SHA-256"):
        token_store.verify(copy)
      (copy / name).write_bytes(data)

  @pytest.mark.parametrize(
    ('name', 'place', 'words'),
    [
      (
        'documents.bin',
        slice(None),
        r'numbers from 0 to \d+, but is damaged. C',
      ),
      ('documents.bin', -1, 'numbers from 0 to '),
      ('tokens.bin', -1, 'ids that end with 2, the end of a text'),
      ('clients.bin', slice(None), 'ranges of 157 documents'),
      # The last document of client f, and the first of client e.
      ('clients.bin', 11, 'ranges of 157 documents'),
      ('clients.bin', 8, 'ranges of 157 documents'),
    ],
  )
  def test_wrong_numbers(self, copy, name, place, words):
    numbers = np.fromfile(copy / name, '<u2' if name[0] == 't' else '<i8')
    numbers[place] = 200 if place == 8 else 0
    numbers.tofile(copy / name)
    with pytest.raises(UserError, match=f"{name}' must hold {words}"):
      TokenStore(copy)

  def test_read_once(self, stored, copy, monkeypatch):
    verified = []

    def count(directory, *arguments):
      verified.append(directory)
      return verify(directory, *arguments)

    def read():
      # As another process, which does not know what this one has read.
      token_store._verify_once.cache_clear()
      StoredSequences(TokenStore(copy), stored.tokenizer, sequence_length=7)
      return len(verified)

    verify = token_store.verify
    monkeypatch.setattr(token_store, 'verify', count)
    assert (read(), read()) == (1, 1)
    # As `cp -p` leaves a file: bytes of the same number and age.
    path, status = copy / 'tokens.bin', (copy / 'tokens.bin').stat()
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (read(), read()) == (2, 2)
    data = bytearray(path.read_bytes())
    data[100:120] = bytes(20)
    path.write_bytes(data)
    for number in (3, 4):
      with pytest.raises(UserError, match="tokens.bin' must have SHA-256 "):
        read()
      assert len(verified) == number

  def test_stamp_that_cannot_be_written(self, stored, copy):
    (copy / '.verified.json').unlink(missing_ok=True)
    (copy / '.verified.json').mkdir()
    before = sorted(copy.iterdir())
    StoredSequences(TokenStore(copy), stored.tokenizer, sequence_length=7)
    assert sorted(copy.iterdir()) == before

  def test_damaged_store_ends_a_run(self, small_tokens, tmp_path, capsys):
    store = shutil.copytree(small_tokens[0], tmp_path / 'tokens')
    data = bytearray((store / 'tokens.bin').read_bytes())
    data[len(data) // 2] ^= 1
    (store / 'tokens.bin').write_bytes(data)
    run = tmp_path / 'run'
    assert small_runs.train((store, small_tokens[1]), run, '--dry_run') == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "tokens.bin' must have SHA-256 " in line
    assert not run.exists()

  def test_another_library(self, stored, copy, capsys):
    token_stores.describe_again(copy, library='tensorflow-text 0.1')
    for _ in range(2):
      StoredSequences(TokenStore(copy), stored.tokenizer, sequence_length=7)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith('fedfish: warning: ')
    assert 'was tokenized by tensorflow-text 0.1; tensorflow-text ' in line

  def test_another_vocabulary(self, stored):
    other = tokenizers.WordPieceTokenizer(
      '\n'.join([*PIECES, 'k']).encode(), 'vocab.txt'
    )
    with pytest.raises(UserError, match='must be of the vocabulary of the run'):
      StoredSequences(stored.store, other, sequence_length=7)

  def test_a_directory_that_is_neither(self, tmp_path):
    with pytest.raises(UserError, match='is not a grouped corpus'):
      token_store.open_text(tmp_path)


def test_names_stand_for_the_corpus(stored):
  directories = stored.corpus.directory, stored.store.directory
  assert len({token_store.corpus_name_of(d) for d in directories}) == 1
  one, other = map(token_store.manifest_of, directories)
  assert one == other
  assert isinstance(token_store.open_text(directories[1]), TokenStore)
