"""Writes the numbers of small jobs, and compares those of two checkouts.

  cd CHECKOUT && python .../tests/same_numbers.py write DIR [--only PART]
  python tests/same_numbers.py compare BEFORE AFTER [--expect FILE]

`write` runs `fedfish` of the current directory's checkout and keeps the tables
of runs, evaluations and reports, digests of all tensors, and digests of grouped
corpora. `compare` prints every difference and exits with 1 if there is one
that FILE, lines of `PATTERN: reason`, does not name. Both directories have to
come from one machine: another processor rounds sums in another order.
"""

import argparse
import collections
import concurrent.futures
import csv
import fnmatch
import hashlib
import json
import os
import pathlib
import platform
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

_TABLES = (
  *('metrics.csv', 'privacy.csv', 'per_client.csv', 'barrier.csv'),
  *('summary.csv', 'comparisons.csv'),
)
# Of the machine, not of the numbers.
_MEASURED = {'seconds_per_round', 'tokens_per_second', 'peak_memory_bytes'}
_CORPORA = 'tff_fedfish/corpora'
_VOCABULARY = f'{_CORPORA}/demo_vocabulary'
# One thread within an op: two jobs run side by side on two cores.
_ENVIRONMENT = {
  'TF_CPP_MIN_LOG_LEVEL': '3',
  'TF_NUM_INTRAOP_THREADS': '1',
  'TF_NUM_INTEROP_THREADS': '2',
}
_DEMO = {
  'data.vocabulary': _VOCABULARY,
  'training.num_rounds': 3,
  'evaluation.num_clients': 4,
  'checkpoints.every_num_rounds': 1,
}
_TEXT = _DEMO | {
  'model.preset': 'custom',
  'model.num_layers': 2,
  'model.width': 32,
  'model.num_heads': 2,
  'model.vocabulary_size': 2048,
  'data.sequence_length': 32,
  'cohorts.cohort_size': 4,
  'training.num_rounds': 2,
  'evaluation.every_num_rounds': 1,
}
_ADAMW = {
  'client_work.optimizer': 'adamw',
  'client_work.learning_rate': 1e-3,
}
# Settings of a run by its name; the first word of a name is the method.
_TEXT_RUNS = {
  'fed_avg': {},
  'fed_sgd': {},
  'fed_prox': {'algorithm.mu': 0.1},
  'scaffold': {},
  'moon': {},
  'fed_fish last_epoch': {'algorithm.fisher_estimator': 'last_epoch'},
  'fed_fish example_sq': {
    'algorithm.fisher_estimator': 'example_sq',
    'algorithm.fisher_reduction': 'mean',
  },
  'fed_fish second_moment': {'algorithm.fisher_estimator': 'second_moment'}
  | _ADAMW,
  'fed_fish mix': {
    'algorithm.fisher_power': 0.5,
    'algorithm.plain_mean_fraction': 0.5,
    'algorithm.plain_mean_tensors': 'logits',
  },
  'fed_avg adamw': {
    'client_work.num_local_epochs': 2,
    'client_work.keeps_optimizer_state': True,
  }
  | _ADAMW,
}
_NO_VALIDATION = {'client_splits.validation_fraction': 0.0}
_ONE_SHOT = {
  'fed_fisher': {'algorithm.num_solver_steps': 200},
  'fed_fisher diagonal': {
    'algorithm.curvature': 'diagonal',
    'algorithm.solver': 'closed_form',
  },
  'fisher_merge': {},
  'reg_mean': {},
  'ot_fusion': {},
  'pfnm': {},
  'dense': {
    'algorithm.num_outer_epochs': 2,
    'algorithm.num_generator_steps': 2,
  },
}
_IMAGE_RUNS = {
  'fed_fomo': {'algorithm.num_downloads': 3, 'training.num_rounds': 2},
  'local_only': {},
  'fed_fish': {},
  'tct': {
    'algorithm.num_bootstrap_rounds': 1,
    'algorithm.num_features': 500,
    'algorithm.num_convex_steps': 20,
    'training.num_rounds': 4,
  }
  | _NO_VALIDATION,
} | {
  name: _NO_VALIDATION | {'algorithm.num_validation_rows': 100} | settings
  for name, settings in _ONE_SHOT.items()
}
_IMAGES = {
  'algorithm.name': 'fed_avg',
  'client_work.num_local_epochs': 1,
  'client_work.local_batch_size': 10,
  'client_work.max_sequences_per_client': 40,
  'client_work.learning_rate': 0.05,
  'server.optimizer': 'sgd',
  'server.learning_rate': 1.0,
  'model.preset': 'lenet',
  'data.corpus': 'mnist',
  'partition.scheme': 'pathological_shards',
  'partition.num_clients': 5,
  'partition.shards_per_client': 2,
  'cohorts.cohort_size': None,
  'client_splits.held_out_fraction': None,
  'client_splits.validation_fraction': 0.2,
  'training.num_rounds': 1,
  'evaluation.every_num_rounds': 1,
  'evaluation.num_clients': 5,
  'evaluation.max_sequences_per_client': 0,
  'checkpoints.every_num_rounds': 1,
}
_REPORTED = _TEXT | {
  'algorithm.name': 'fed_fish',
  'client_work.num_local_epochs': 1,
  'client_work.local_batch_size': 4,
  'client_work.learning_rate': 0.1,
  'client_work.max_sequences_per_client': 8,
  'server.optimizer': 'adam',
  'server.learning_rate': 1e-3,
  'evaluation.max_sequences_per_client': 8,
}
_CONFIG = """\
from ml_collections import ConfigDict


def get_config():
  return ConfigDict({!r})
"""
_SWEEP = """

def get_sweep():
  return ConfigDict({!r}, allow_dotted_keys=True)
"""


class _Writer:
  """Runs commands of a checkout and keeps their numbers.

  Attributes:
    root: Directory of the results; `work` in it holds what commands write.
  """

  def __init__(self, root: pathlib.Path):
    self.root = root
    self.work = root / 'work'
    self._environment = os.environ | _ENVIRONMENT | {'PYTHONPATH': os.getcwd()}

  def fedfish(self, *arguments) -> None:
    """Runs a command; an exit code but 0 ends the program."""
    command = [sys.executable, '-m', 'tff_fedfish', *map(str, arguments)]
    done = subprocess.run(
      command, env=self._environment, capture_output=True, text=True
    )
    if done.returncode:
      sys.exit(f'{" ".join(command)}\n{done.stdout}{done.stderr}')

  def train(self, name, config, settings, *, resume_at=0) -> pathlib.Path:
    """Trains a run, with a stop in between if `resume_at` names a round."""
    run = self.work / name
    command = ['train', '--config', config, '--workdir', run]
    method = name.rpartition('/')[2].partition(' ')[0]
    settings = {'algorithm.name': method} | settings
    if resume_at:
      first = settings | {'training.num_rounds': resume_at}
      self.fedfish(*command, *_overrides(first))
    self.fedfish(*command, *_overrides(settings))
    self.keep(run, name)
    return run

  def evaluate(self, run, data, name, *options) -> None:
    """Evaluates the last checkpoint of a run."""
    output = self.work / name
    self.fedfish(
      *('evaluate', '--checkpoint', run, '--data', data, '--output', output),
      *('--max_clients=4', '--max_sequences_per_client=4', *options),
    )
    self.keep(output, name)

  def group(self, name, *options) -> pathlib.Path:
    """Groups raw files; a corpus without a split is one more directory."""
    output = self.work / 'corpora' / name
    if not output.exists():
      self.fedfish('group', *options, '--output', output)
      for manifest in sorted(output.rglob('manifest.json')):
        part = manifest.parent.relative_to(self.work)
        self._write(f'{part}/corpus.json', _corpus(manifest))
    return output

  def keep(self, directory: pathlib.Path, name: str) -> None:
    """Copies the tables of a directory and digests of its tensors."""
    for path in sorted(directory.glob('*.csv')):
      if path.name in _TABLES:
        (self.root / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, self.root / name)
    last = sorted(directory.glob('checkpoints/round_*'))[-1:]
    kept = sorted(directory.glob('client_states'))
    for kind in (*last, *kept):
      tensors = [t for path in kind.rglob('*.safetensors') for t in _read(path)]
      label = 'state' if kind in last else kind.name
      self._write(f'{name}/{label}.tensors.json', sorted(tensors))

  def _write(self, name: str, value) -> None:
    path = self.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1), 'utf-8')


def _config(settings) -> str:
  """Returns the text of a config file."""
  sections = {}
  for name, value in settings.items():
    section, _, setting = name.partition('.')
    sections.setdefault(section, {})[setting] = value
  return _CONFIG.format(sections)


def _overrides(settings) -> list[str]:
  return [f'--config.{name}={value}' for name, value in settings.items()]


def _read(path: pathlib.Path) -> Iterator[tuple[list[int], str, str]]:
  """Yields shape, dtype and SHA-256 of the tensors of a safetensors file."""
  data = path.read_bytes()
  (size,) = struct.unpack('<Q', data[:8])
  for name, entry in json.loads(data[8 : 8 + size]).items():
    if name != '__metadata__':
      start, stop = (8 + size + offset for offset in entry['data_offsets'])
      digest = hashlib.sha256(data[start:stop]).hexdigest()
      yield entry['shape'], entry['dtype'], digest


def _corpus(manifest: pathlib.Path) -> dict[str, object]:
  """Returns digests of a corpus, and the counts of its manifest."""
  files = [*manifest.parent.glob('*.tfrecord')]
  files += manifest.parent.glob('index.parquet')
  values = json.loads(manifest.read_text('utf-8'))
  counts = values.get('counts', {})
  return {
    path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files
  } | {f'count {name}': value for name, value in sorted(counts.items())}


def _debian(writer: _Writer, kind: str = 'plain') -> pathlib.Path:
  """Groups the package descriptions."""
  options = {
    'plain': (),
    'source': ('--split_by', 'source'),
    'client': ('--split_by', 'client', '--held_out_fraction', '0.2'),
  }[kind]
  pattern = 'c4-*' if kind == 'source' else 'c4-train.*'
  return writer.group(
    f'debian_{kind}',
    *('c4', '--input', f'{_CORPORA}/debian_descriptions/{pattern}.json.gz'),
    *('--num_shards', 4, *options),
  )


def _sotu(writer: _Writer, kind: str = 'plain') -> pathlib.Path:
  """Groups the speeches of the presidents."""
  raw = f'{_CORPORA}/sotu_by_president/sotu.json.gz'
  options = ('--key', 'author', '--num_shards', 4)
  if kind == 'time':
    options += ('--split_by', 'time', '--split_time', '1900-01-01T00:00:00Z')
  return writer.group(f'sotu_{kind}', 'c4', '--input', raw, *options)


def _write_images(directory: pathlib.Path) -> pathlib.Path:
  """Writes MNIST's four files: noise with a bright row that tells the class."""
  import numpy as np

  directory.mkdir(parents=True, exist_ok=True)
  random = np.random.RandomState(5)
  for name, number in (('train', 300), ('t10k', 100)):
    labels = random.randint(10, size=number)
    images = random.randint(100, size=(number, 28, 28))
    images[np.arange(number), 2 * labels] = 255
    for kind, array in (('images-idx3', images), ('labels-idx1', labels)):
      header = bytes([0, 0, 8, array.ndim])
      header += struct.pack(f'>{array.ndim}I', *array.shape)
      path = directory / f'{name}-{kind}-ubyte'
      path.write_bytes(header + array.astype(np.uint8).tobytes())
  return directory


def _grouping(writer: _Writer) -> None:
  for kind in ('plain', 'source', 'client'):
    _debian(writer, kind)
  for kind in ('plain', 'time'):
    _sotu(writer, kind)
  raw = f'{_CORPORA}/debian_descriptions/c4-train.*.json.gz'
  fields = ('--key_field', 'url', '--text_field', 'text')
  writer.group('json_lines', 'json_lines', '--input', raw, *fields)


def _demo(writer: _Writer) -> None:
  debian, sotu = _debian(writer), _sotu(writer)

  def one(method):
    settings = _DEMO | {'data.directory': debian}
    run = writer.train(f'demo/{method}', 'demo', settings)
    barrier = ('--barrier',) if method == 'fed_fish' else ()
    writer.evaluate(run, debian, f'demo/{method} held_out', *barrier)
    writer.evaluate(run, sotu, f'demo/{method} transfer')

  _side_by_side([lambda: one('fed_avg'), lambda: one('fed_fish')])


def _text(writer: _Writer) -> None:
  base = _TEXT | {'data.directory': _debian(writer)}
  jobs = [
    lambda name=name, own=own: writer.train(f'text/{name}', 'demo', base | own)
    for name, own in _TEXT_RUNS.items()
  ]
  _side_by_side(jobs)


def _images(writer: _Writer) -> None:
  directory = _write_images(writer.work / 'mnist')
  config = writer.work / 'images.py'
  settings = _IMAGES | {'data.directory': str(directory)}
  config.write_text(_config(settings), 'utf-8')

  def one(name, settings):
    run = writer.train(f'images/{name}', config, settings)
    if name in ('fed_fomo', 'fed_fish'):
      split = ('--client_split', 'own_test', '--fractions', '0')
      writer.evaluate(run, directory, f'images/{name} own_test', *split)

  _side_by_side([lambda n=n, s=s: one(n, s) for n, s in _IMAGE_RUNS.items()])


def _engine(writer: _Writer) -> None:
  """DP-SGD, workers, and a run that was continued."""
  base = _TEXT | {'data.directory': _debian(writer)}
  privacy = {
    'local_privacy.clip_norm': 1.0,
    'local_privacy.noise_multiplier': 0.5,
    'client_work.num_local_epochs': 1,
  }
  sums = base | {'engine.num_partial_sums': 2}
  ray = {'engine.kind': 'ray', 'engine.num_workers': 2}

  three = base | {'training.num_rounds': 3}

  def train(name, settings, **options):
    return writer.train(f'engine/{name}', 'demo', settings, **options)

  _side_by_side(
    [
      lambda: train('fed_avg private', base | privacy),
      lambda: train('fed_fish whole', three),
      lambda: train('fed_fish continued', three, resume_at=1),
      lambda: train('fed_fish here', sums),
    ]
  )
  train('fed_fish workers', sums | ray)
  for first, second in (('whole', 'continued'), ('here', 'workers')):
    for name in ('metrics.csv', 'state.tensors.json'):
      one, other = (
        writer.root / 'engine' / f'fed_fish {kind}' / name
        for kind in (first, second)
      )
      if one.read_bytes() != other.read_bytes():
        sys.exit(f'{one} and {other} differ.')


def _report(writer: _Writer) -> None:
  debian, sotu = str(_debian(writer)), str(_sotu(writer))
  sizes = dict(max_clients=4, max_sequences_per_client=4)
  for name, varied, values in (
    ('methods', 'algorithm.name', ['fed_avg', 'fed_fish']),
    ('epochs', 'client_work.num_local_epochs', [1, 2]),
  ):
    seeds = {'seeds.model_seed,seeds.cohort_seed': [(1, 1), (2, 2)]}
    sweep = dict(
      grid={varied: values} | seeds,
      evaluate=[dict(sizes, barrier=True), dict(sizes, data=sotu)],
    )
    config = writer.work / f'{name}_sweep.py'
    text = _config(_REPORTED | {'data.directory': debian})
    config.write_text(text + _SWEEP.format(sweep), 'utf-8')
    workdir = writer.work / 'report' / f'{name}_sweep'
    command = ('sweep', '--config', config, '--workdir', workdir)
    writer.fedfish(*command, '--jobs', 2)
    output = writer.work / 'report' / f'{name}_report'
    runs = sorted((workdir / 'arms').iterdir())
    writer.fedfish('report', '--runs', *runs, '--output', output)
    writer.keep(output, f'report/{name}')


_PARTS = {
  'grouping': _grouping,
  'demo': _demo,
  'text': _text,
  'images': _images,
  'engine': _engine,
  'report': _report,
}


def _side_by_side(jobs) -> None:
  """Runs jobs two at a time; the first failure ends the program."""
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    for future in [pool.submit(job) for job in jobs]:
      future.result()


def _machine() -> dict[str, object]:
  cpu = pathlib.Path('/proc/cpuinfo').read_text('utf-8')
  flags = next((line for line in cpu.splitlines() if 'flags' in line), '')
  return {
    'processor': platform.machine(),
    'flags': ' '.join(sorted(flags.partition(':')[2].split())),
    'cores': len(os.sched_getaffinity(0)),
    'environment': _ENVIRONMENT,
  }


def write(directory: pathlib.Path, only: str | None) -> None:
  """Writes the numbers of this checkout, all or those of one part."""
  root = directory.resolve()
  (root / 'work').mkdir(parents=True, exist_ok=True)
  (root / 'machine.json').write_text(json.dumps(_machine()), 'utf-8')
  for name, part in _PARTS.items():
    if only in (None, name):
      start = time.monotonic()
      for old in (root / name, root / 'work' / name):
        shutil.rmtree(old, ignore_errors=True)
      part(_Writer(root))
      print(f'{name}: {time.monotonic() - start:.0f} s', flush=True)


def _table_differences(before: pathlib.Path, after: pathlib.Path):
  """Yields the columns in which two tables differ, and how."""
  rows = []
  for path in (before, after):
    with path.open(newline='', encoding='utf-8') as file:
      rows.append(list(csv.DictReader(file)))
  if len(rows[0]) != len(rows[1]):
    yield '*', f'{len(rows[0])} rows before, {len(rows[1])} after'
    return
  # A table without rows has no columns to compare.
  columns = dict.fromkeys(
    name for table in rows for row in table[:1] for name in row
  )
  for name in columns:
    if name in _MEASURED:
      continue
    cells = [[row.get(name) for row in table] for table in rows]
    if cells[0] == cells[1]:
      continue
    if None in (cells[0][0], cells[1][0]):
      yield name, 'a new column' if cells[0][0] is None else 'no such column'
      continue
    row = next(
      i for i, pair in enumerate(zip(*cells, strict=True)) if pair[0] != pair[1]
    )
    yield name, f'row {row + 1}: {cells[0][row]} before, {cells[1][row]} after'


def _json_differences(before: pathlib.Path, after: pathlib.Path):
  """Yields the entries in which two files of digests differ."""
  values = [json.loads(path.read_text('utf-8')) for path in (before, after)]
  if isinstance(values[0], dict):
    for name in sorted(values[0].keys() | values[1].keys()):
      pair = [value.get(name) for value in values]
      if pair[0] != pair[1]:
        yield name, f'{pair[0]} before, {pair[1]} after'
    return
  counts = [
    collections.Counter(json.dumps(entry) for entry in value)
    for value in values
  ]
  if counts[0] != counts[1]:
    gone = sum((counts[0] - counts[1]).values())
    new = sum((counts[1] - counts[0]).values())
    yield 'tensors', f'{gone} of {len(values[0])} are not there, {new} are new'


def differences(before: pathlib.Path, after: pathlib.Path):
  """Yields what differs, as 'path:column', and how."""
  paths = {
    path.relative_to(root)
    for root in (before, after)
    for path in root.rglob('*')
    if path.is_file() and path.relative_to(root).parts[0] != 'work'
  }
  for path in sorted(paths - {pathlib.Path('machine.json')}):
    pair = before / path, after / path
    if not all(p.exists() for p in pair):
      yield f'{path}:', f'only {"after" if pair[1].exists() else "before"}'
      continue
    is_table = path.suffix == '.csv'
    between = _table_differences if is_table else _json_differences
    for name, how in between(*pair):
      yield f'{path}:{name}', how


def compare(
  before: pathlib.Path, after: pathlib.Path, expect: pathlib.Path | None
) -> int:
  """Prints differences; returns 1 if one is not expected."""
  machines = [(p / 'machine.json').read_text('utf-8') for p in (before, after)]
  if machines[0] != machines[1]:
    sys.exit(f'{before} and {after} were written on different machines.')
  expected = {}
  for line in expect.read_text('utf-8').splitlines() if expect else ():
    if line and not line.startswith('#'):
      pattern, _, reason = line.rpartition(': ')
      expected[pattern] = reason
  used, failed = set(), 0
  for name, how in differences(before, after):
    pattern = next((p for p in expected if fnmatch.fnmatch(name, p)), None)
    used.add(pattern)
    failed += pattern is None
    print(f'{name}: {how} ({expected.get(pattern, "NOT EXPECTED")})')
  for pattern in expected.keys() - used:
    print(f'expected, but equal: {pattern}')
  print(f'{failed} differences that are not expected')
  return 1 if failed else 0


def main() -> int:
  """Reads the command line."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  commands = parser.add_subparsers(dest='command', required=True)
  writing = commands.add_parser('write')
  writing.add_argument('directory', type=pathlib.Path)
  writing.add_argument('--only', choices=_PARTS)
  comparing = commands.add_parser('compare')
  comparing.add_argument('before', type=pathlib.Path)
  comparing.add_argument('after', type=pathlib.Path)
  comparing.add_argument('--expect', type=pathlib.Path)
  arguments = parser.parse_args()
  if arguments.command == 'write':
    write(arguments.directory, arguments.only)
    return 0
  return compare(arguments.before, arguments.after, arguments.expect)


if __name__ == '__main__':
  sys.exit(main())
