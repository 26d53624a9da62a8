"""One opening of a corpus by a run, step by step, in this process, as JSON."""

import argparse
import contextlib
import hashlib
import json
import time
from collections.abc import Iterator

from tff_fedfish.config import load
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.evaluation.clients import choose_clients
from tff_fedfish.run import client_data, cohorts, corpus_identity
from tff_fedfish.run.row_source import row_source


class _Steps:
  """Seconds of steps, and the memory of the process in and after them."""

  def __init__(self):
    self.found = {}

  @contextlib.contextmanager
  def __call__(self, name: str) -> Iterator[None]:
    # The peak is that since here.
    with open('/proc/self/clear_refs', 'w') as file:
      file.write('5')
    start, processor = time.perf_counter(), time.process_time()
    yield
    self.found[name] = {
      'seconds': time.perf_counter() - start,
      'cpu_seconds': time.process_time() - processor,
      'peak_mib': _resident('VmHWM'),
      'after_mib': _resident('VmRSS'),
    }


def _resident(name: str) -> float:
  with open('/proc/self/status') as file:
    (line,) = (line for line in file if line.startswith(name))
  return int(line.split()[1]) / 1024


def config_of(directory: str) -> TrainConfig:
  """Returns the demo's config, with another corpus."""
  return load.load_config('demo', [f'--config.data.directory={directory}'])


def main() -> None:
  """Opens, divides and draws as `fedfish train` does before its first round."""
  parser = argparse.ArgumentParser()
  parser.add_argument('directory')
  config = config_of(parser.parse_args().directory)
  tokenizer = client_data.open_tokenizer(config, config.data.vocabulary)
  # Imports TensorFlow, which is none of these steps.
  tokenizer.encode_batch([b'words'])
  steps = _Steps()
  with steps('index'):
    corpus = client_data.open_corpus(config, config.data.directory)
  with steps('division'):
    split = row_source(config).split(corpus)
    participating = row_source(config).training_clients(split)
  with steps('fingerprint'):
    identity = corpus_identity.identify(config, corpus)
  with steps('held-out sample'):
    rows = row_source(config).client_rows(corpus, tokenizer)
    sample = choose_clients(
      split.held_out,
      rows,
      split_seed=config.seeds.split_seed,
      split_unit=config.evaluation.split_unit,
      max_clients=config.evaluation.num_clients,
      max_sequences=config.evaluation.max_sequences_per_client,
    )
  with steps('cohort'):
    cohort = cohorts.cohort(config, participating, rows, 1)
    for client in cohort:
      client.sequences()
  result = {
    'fingerprint': identity.fingerprint,
    'num_participating': len(participating),
    'participating': _digest(participating),
    'held_out': _digest(split.held_out),
    'sample': _digest(client_id for client_id, _ in sample.clients),
    'skipped': sample.skipped,
    'cohort': _digest(client.client_id for client in cohort),
  }
  print(json.dumps({'steps': steps.found, 'result': result}))


def _digest(client_ids) -> str:
  hasher = hashlib.sha256()
  for client_id in client_ids:
    hasher.update(len(client_id).to_bytes(8, 'big') + client_id)
  return hasher.hexdigest()


if __name__ == '__main__':
  main()
