"""`fedfish group` and `fedfish inspect` as a user meets them."""

import io
import json
import pathlib
import re
import subprocess
import sys

import pytest

from tff_fedfish.data import places
from tff_fedfish.data.manifest import read_manifest

# Only these two, so that what the other commands import is not measured here.
COMMANDS = {
  'group': 'tff_fedfish.cli.group',
  'inspect': 'tff_fedfish.cli.inspect',
  'verify': 'tff_fedfish.cli.verify',
}


@pytest.fixture
def raw(tmp_path):
  """A raw file: three records of two hosts, one of an author, one bad line."""
  path = tmp_path / 'raw[1].json'
  lines = [
    {'text': 'one two', 'url': 'http://www.a.com/', 'timestamp': '1'},
    {'text': 'three', 'url': 'http://a.com/', 'author': 'Me [bold]'},
    {'text': 'four', 'url': 'http://www.a.com/'},
  ]
  path.write_text('\n'.join([*map(json.dumps, lines), '{']))
  return path


def test_characters_that_the_terminal_lacks(fedfish, tmp_path, monkeypatch):
  raw, output = tmp_path / 'raw.jsonl', tmp_path / 'out'
  raw.write_text('{"writer": "Zoë", "text": "gut"}\nkein – JSON\n')
  terminal = io.TextIOWrapper(io.BytesIO(), 'ascii', write_through=True)
  monkeypatch.setattr(sys, 'stdout', terminal)
  group = ('group', 'json_lines', '--input', raw, '--output', output)
  fields = ('--key_field', 'writer', '--text_field', 'text')
  assert fedfish(*group, *fields)[0] == 0
  assert fedfish('inspect', output)[0] == 0
  shown = terminal.buffer.getvalue().decode('ascii')
  assert shown.count('kein \\u2013 JSON') == 2
  assert 'Zo\\xeb' in shown


class TestGroup:
  def test_group_and_inspect(self, fedfish, raw, tmp_path):
    output = tmp_path / 'out'
    code, shown, progress = fedfish(
      'group', 'c4', '--input', raw, '--output', output, '--num_shards', 2
    )
    assert code == 0
    assert re.fullmatch(
      r'Grouping 1 file by host into 2 shards\n'
      r'Grouped in \S+ s, \S+ \S+ of input per second\.\n',
      progress,
    )
    assert re.search(r'records read +4\b', shown)
    assert re.search(
      r'dropped: malformed_json +1 +raw\[1\].json, record 4', shown
    )
    assert re.search(r'examples stored +3\b', shown)
    assert re.search(r'groups +2\b', shown)
    manifest = read_manifest(output)
    assert manifest.feature_names == ('text', 'timestamp', 'url', 'author')
    assert manifest.options['max_record_bytes'] == 256 * 1024 * 1024

    code, shown, errors = fedfish('inspect', output)
    assert (code, errors) == (0, '')
    assert re.search(r'dropped: malformed_json +1 +raw\[1\]', shown)
    # Groups of 1 and 2 examples: the 50th percentile is the smaller one.
    assert re.search(r'examples( +1){4}( +2){4} +1.5 *\n', shown)
    # www.a.com has one, two and four: 3 of 4 words.
    assert re.search(r'www.a.com +2 +3 +75.0%', shown)
    assert re.search(r'\ba.com +1 +1 +25.0%', shown)

  def test_parts_and_damage_are_shown(self, fedfish, raw, tmp_path):
    cut = tmp_path / 'cut.gz'
    cut.write_bytes(b'\x1f\x8b')
    output = tmp_path / 'out'
    command = ('group', 'c4', '--input', raw, cut, '--output', output)
    code, shown, _ = fedfish(*command, '--max_record_bytes', 1)
    assert code == 0
    assert re.search(r'group records +3\b', shown)
    assert 'cut.gz: truncated_file, 0 records read.' in shown

  def test_beam_options_pass_through(self, fedfish, raw, tmp_path):
    command = ('group', 'c4', '--input', raw, '--output', tmp_path / 'out')
    runner = 'apache_beam.runners.portability.fn_api_runner.FnApiRunner'
    code, _, _ = fedfish(*command, '--runner', runner, '--direct_num_workers=1')
    assert code == 0

  def test_output_may_be_the_current_directory(
    self, fedfish, raw, tmp_path, monkeypatch
  ):
    (tmp_path / 'here').mkdir()
    monkeypatch.chdir(tmp_path / 'here')
    assert fedfish('group', 'c4', '--input', raw, '--output', '.')[0] == 0
    assert read_manifest(tmp_path / 'here').counts.records_out == 3

  def test_split(self, fedfish, raw, tmp_path):
    output = tmp_path / 'out'
    command = ('group', 'c4', '--input', raw, '--output', output)
    code, shown, progress = fedfish(
      *command,
      *('--split_by', 'client', '--held_out_fraction', 0.5),
      *('--split_seed', 4),
    )
    assert code == 0
    # Eight for each part.
    assert re.fullmatch(
      r'Grouping 1 file by host into 16 shards\n'
      r'Grouped in \S+ s, \S+ \S+ of input per second\.\n',
      progress,
    )
    # The hash of a.com is on the one side, that of www.a.com on the other.
    for name, examples, others in (('train', 2, 1), ('held_out', 1, 2)):
      assert f'{output}/{name}: c4 by host' in shown
      assert read_manifest(output / name).counts.drops == {
        'malformed_json': 1,
        'other_split': others,
      }
      assert read_manifest(output / name).counts.records_out == examples

  def test_strict(self, fedfish, raw, tmp_path):
    command = ('group', 'c4', '--input', raw, '--output', tmp_path / 'out')
    code, shown, errors = fedfish(*command, '--strict')
    assert (code, shown) == (2, '')
    assert "record 4 of 'raw[1].json' has one: malformed_json ('{')" in errors
    assert list(tmp_path.iterdir()) == [raw]


class TestGroupErrors:
  @pytest.mark.parametrize(
    ('change', 'message'),
    [
      (
        {'--input': '{tmp}/none-*.json'},
        "`--input` must match at least one file, but '{tmp}/none-*.json' "
        'matches none.',
      ),
      (
        {'--num_shards': '0'},
        '`--num_shards` must be from 1 to 99999, but is 0.',
      ),
      (
        {'--max_document_bytes': '2000000000'},
        '`--max_document_bytes` must be from 1 to 1073741824, but is '
        '2000000000.',
      ),
      (
        {'--output': ''},
        "`--output` must be the name of a directory, but is ''. Name one.",
      ),
      (
        {'--split_by': 'time', '--split_time': 'soon'},
        '`--split_time` must be a moment such as 2018-01-01 or '
        "2018-01-01T12:00:00+02:00, but is 'soon'.",
      ),
      (
        {'--split_by': 'client', '--held_out_fraction': '1.5'},
        'together between 0 and 1, but are 1.5 and 0.0.',
      ),
      (
        {'--held_out_fraction': '0.5'},
        '`--held_out_fraction` goes with `--split_by client`, found c4 and '
        '`--split_by` None. Leave it out.',
      ),
      (
        {'--split_by': 'client', '--split_time': '2018-01-01'},
        '`--split_time` goes with `--split_by time`, found c4 and `--split_by` '
        'client. Leave it out.',
      ),
      ({'--bogus': 'x'}, 'unrecognized arguments: --bogus x'),
      ({'--key-field': 'x'}, ': --key-field x; did you mean --key_field?'),
      (
        {'--direct_num_workers': 'x'},
        "argument --direct_num_workers: invalid int value: 'x'",
      ),
      (
        {'--runner': 'no.such.Runner'},
        "`--runner` must name a Beam runner, but is 'no.such.Runner'",
      ),
    ],
  )
  def test_bad_argument(self, fedfish, raw, tmp_path, change, message):
    options = {'--input': str(raw), '--output': str(tmp_path / 'out')} | {
      name: value.format(tmp=tmp_path) for name, value in change.items()
    }
    command = [word for option in options.items() for word in option]
    code, shown, errors = fedfish('group', 'c4', *command)
    assert (code, shown) == (2, '')
    assert message.format(tmp=tmp_path) in errors
    assert errors.count('\n') == 1
    assert list(tmp_path.iterdir()) == [raw]

  def test_store_that_does_not_answer(self, fedfish, tmp_path, monkeypatch):
    monkeypatch.setenv('AWS_ENDPOINT_URL', 'http://127.0.0.1:1')
    monkeypatch.setenv('AWS_EC2_METADATA_DISABLED', 'true')
    monkeypatch.setattr(places, '_connect', places._connect.__wrapped__)
    options = ('--input', 's3://bucket/raw', '--output', tmp_path / 'out')
    code, _, errors = fedfish('group', 'c4', *options)
    assert code == 2
    assert re.fullmatch(
      r"fedfish: error: `--input` must be .*, but 's3://bucket/raw' is not "
      r'\(.*NETWORK_CONNECTION.*\)\. Check .*\n',
      errors,
    )

  def test_complete_corpus_is_not_replaced(self, fedfish, raw, tmp_path):
    command = ('group', 'c4', '--input', raw, '--output', tmp_path / 'out')
    assert fedfish(*command)[0] == 0
    before = (tmp_path / 'out' / 'manifest.json').stat().st_mtime_ns
    code, _, errors = fedfish(*command)
    assert code == 2
    assert 'Name another directory, or remove it first.' in errors
    after = (tmp_path / 'out' / 'manifest.json').stat().st_mtime_ns
    assert after == before


def test_errors_come_before_slow_imports(tmp_path):
  program = f"""
import sys
from tff_fedfish.cli import main
main._COMMANDS = {COMMANDS}
command = ['group', 'c4', '--output', 'out', '--input']
for options in (['/none'], ['/dev/null', '--bogus']):
  try:
    main.main([*command, *options])
  except SystemExit:
    pass
print({{'tensorflow', 'pipelines.job'}} & set(sys.modules))
"""
  done = subprocess.run(
    [sys.executable, '-c', program],
    cwd=pathlib.Path(__file__).parents[2],
    capture_output=True,
    text=True,
  )
  assert done.stdout == 'set()\n'
  missing, unknown = done.stderr.splitlines()
  assert 'must match at least one file' in missing
  assert 'unrecognized arguments: --bogus' in unknown


def test_missing_author_is_explained(fedfish, raw, tmp_path):
  command = ('group', 'c4', '--key', 'author', '--output', tmp_path / 'out')
  _, shown, _ = fedfish(*command, '--input', raw)
  line = r'dropped: missing_author \(no field "author"\) +2 +raw'
  assert re.search(line, shown)
  assert re.search(line, fedfish('inspect', tmp_path / 'out')[1])
