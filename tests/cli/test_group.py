"""`fedfish group` and `fedfish inspect` as a user meets them."""

import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time

import pytest

from tff_fedfish.cli import main
from tff_fedfish.data.manifest import read_manifest

_ROOT = pathlib.Path(__file__).parents[2]

# Only these two, so that what the other commands import is not measured here.
_COMMANDS = {
  'group': 'tff_fedfish.cli.group',
  'inspect': 'tff_fedfish.cli.inspect',
}
_PROGRAM = (
  'import sys; from tff_fedfish.cli import main; '
  f'main._COMMANDS = {_COMMANDS}; sys.exit(main.main())'
)


@pytest.fixture
def fedfish(monkeypatch, capsys):
  """Runs the command line; returns (exit code, output, errors)."""
  monkeypatch.setattr(main, '_COMMANDS', _COMMANDS)

  def run(*argv):
    try:
      code = main.main([str(argument) for argument in argv])
    except SystemExit as error:
      code = error.code
    return code, *capsys.readouterr()

  return run


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


def _start(*argv):
  return subprocess.Popen(
    [sys.executable, '-c', _PROGRAM, *map(str, argv)],
    cwd=_ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


class TestGroup:
  def test_group_and_inspect(self, fedfish, raw, tmp_path):
    output = tmp_path / 'out'
    code, shown, progress = fedfish(
      'group', 'c4', '--input', raw, '--output', output, '--num_shards', 2
    )
    assert code == 0
    assert progress == 'Grouping 1 file by host into 2 shards\n'
    assert re.search(r'records read +4\b', shown)
    assert re.search(
      r'dropped: malformed_json +1 +raw\[1\].json, line 4', shown
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

  @pytest.mark.parametrize(
    ('key', 'groups', 'drops'),
    [
      ('domain', 'a.com', {'malformed_json': 1}),
      ('author', 'Me [bold]', {'malformed_json': 1, 'missing_author': 2}),
    ],
  )
  def test_other_keys(self, fedfish, raw, tmp_path, key, groups, drops):
    output = tmp_path / 'out'
    command = ('group', 'c4', '--input', raw, '--output', output)
    assert fedfish(*command, '--key', key)[0] == 0
    manifest = read_manifest(output)
    assert (manifest.key, manifest.counts.drops) == (key, drops)
    assert re.search(rf'{re.escape(groups)} +\d', fedfish('inspect', output)[1])

  def test_parts_and_damage_are_shown(self, fedfish, raw, tmp_path):
    cut = tmp_path / 'cut.gz'
    cut.write_bytes(b'\x1f\x8b')
    output = tmp_path / 'out'
    command = ('group', 'c4', '--input', raw, cut, '--output', output)
    code, shown, _ = fedfish(*command, '--max_record_bytes', 1)
    assert code == 0
    assert re.search(r'group records +3\b', shown)
    assert 'cut.gz: truncated_file, 0 lines read.' in shown

  def test_every_file_is_read_once(self, fedfish, raw, tmp_path):
    link = tmp_path / 'link.json'
    link.symlink_to(raw)
    output = tmp_path / 'out'
    spellings = (raw, tmp_path / '*.json', f'{tmp_path}/./link.json')
    assert (
      fedfish('group', 'c4', '--input', *spellings, '--output', output)[0] == 0
    )
    assert len(read_manifest(output).inputs) == 1

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
        {'--input': '{tmp}/raw[1]*.json'},
        'matches none. Check the path, and quote patterns.',
      ),
      (
        {'--input': '{tmp}'},
        "`--input` must name files, but '{tmp}' is a directory. Name files",
      ),
      (
        {'--input': '/dev/null'},
        "`--input` must name files, but '/dev/null' is not a regular file.",
      ),
      (
        {'--input': 'nosuch://bucket/*'},
        "`--input` must be a path that can be read, but 'nosuch://bucket/*'",
      ),
      (
        {'--output': '{tmp}'},
        "`--output` must be empty or new, but '{tmp}' already holds "
        "'raw[1].json'.",
      ),
      (
        {'--output': '/proc/none/out'},
        "must be writable, but '/proc/none/out'",
      ),
      (
        {'--output': 'gs://bucket/out'},
        "`--output` must be a local directory, but is 'gs://bucket/out'.",
      ),
      (
        {'--num_shards': '0'},
        '`--num_shards` must be from 1 to 99999, but is 0.',
      ),
      ({'--num_shards': 'x'}, "argument --num_shards: invalid int value: 'x'"),
      (
        {'--max_record_bytes': '0'},
        '`--max_record_bytes` must be from 1 to 1073741824, but is 0.',
      ),
      ({'--key': 'page'}, "argument --key: invalid choice: 'page'"),
      ({'--bogus': 'x'}, 'unrecognized arguments: --bogus x'),
      ({'--num_shard': '3'}, 'unrecognized arguments: --num_shard 3'),
      (
        {'--direct_num_workers': 'x'},
        "argument --direct_num_workers: invalid int value: 'x'",
      ),
      (
        {'--runner': 'no.such.Runner'},
        "`--runner` must name a Beam runner, but is 'no.such.Runner'",
      ),
      (
        {'--runner': 'Nothing'},
        "`--runner` must name a Beam runner, but is 'Nothing'",
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

  def test_complete_corpus_is_not_replaced(self, fedfish, raw, tmp_path):
    command = ('group', 'c4', '--input', raw, '--output', tmp_path / 'out')
    assert fedfish(*command)[0] == 0
    before = (tmp_path / 'out' / 'manifest.json').stat().st_mtime_ns
    code, _, errors = fedfish(*command)
    assert code == 2
    assert 'Name another directory, or remove it first.' in errors
    after = (tmp_path / 'out' / 'manifest.json').stat().st_mtime_ns
    assert after == before

  def test_unknown_corpus(self, fedfish):
    code, _, errors = fedfish('group', 'c5')
    assert code == 2
    assert "argument corpus: invalid choice: 'c5' (choose from 'c4')" in errors

  @pytest.mark.parametrize(
    'extra', [('--input', '/none'), ('--input', __file__, '--bogus')]
  )
  def test_errors_come_at_once(self, tmp_path, extra):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = _start('group', 'c4', '--output', tmp_path / 'out', *extra)
    _, errors = process.communicate()
    assert process.returncode == 2, errors
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Time of the processor, which other jobs on the machine do not lengthen.
    assert after.ru_utime + after.ru_stime < (
      before.ru_utime + before.ru_stime + 1.5
    )


class TestInterruption:
  @pytest.mark.parametrize(
    ('signal_num', 'code', 'message'),
    [
      (signal.SIGINT, 130, 'fedfish: interrupted.'),
      (signal.SIGTERM, 143, 'fedfish: terminated.'),
    ],
  )
  def test_leaves_nothing(self, tmp_path, signal_num, code, message):
    raw = tmp_path / 'raw.json'
    # Large enough that the job is still at it when the signal comes.
    raw.write_text('{"text": "a b c", "url": "http://a/"}\n' * 600_000)
    process = _start('group', 'c4', '--input', raw, '--output', tmp_path / 'o')
    while not any('reports' in names for _, names, _ in os.walk(tmp_path)):
      assert process.poll() is None, process.communicate()
      time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal_num)
    shown, errors = process.communicate(timeout=5)
    assert (process.returncode, shown) == (code, '')
    assert errors.splitlines()[-1] == message
    assert 'Traceback' not in errors
    assert list(tmp_path.iterdir()) == [raw]


class TestInspectErrors:
  def test_not_a_corpus(self, fedfish, tmp_path):
    code, shown, errors = fedfish('inspect', tmp_path)
    assert (code, shown) == (2, '')
    assert f"'{tmp_path}' is not a grouped corpus: it has no" in errors
    assert errors.count('\n') == 1

  def test_newer_schema(self, fedfish, tmp_path):
    (tmp_path / 'manifest.json').write_text('{"schema_version": 99}')
    code, _, errors = fedfish('inspect', tmp_path)
    assert code == 2
    assert 'newer version of fedfish (schema version 99). Upgrade' in errors
