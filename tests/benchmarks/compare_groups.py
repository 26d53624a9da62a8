"""Checks that two grouping jobs wrote the same groups of the same examples."""

import argparse
import collections
import glob
import hashlib
import os

from benchmarks.grouping_arms import FEATURE_NAMES
from group_records import read_group_records

from pipelines.keys import host_key
from tff_fedfish.data import records

Groups = dict[bytes, list[bytes]]
"""Returns, by host, the sorted hashes of the examples."""


def difference(ours: str | os.PathLike, dataset_grouper: str | os.PathLike):
  """Says in a line how the outputs of the two jobs differ; '' if they do not.

  Groups of Dataset Grouper whose network locations have the same host (such as
  `a.org` and `A.org:443`) count as one.
  """
  found, expected = _read(ours), _read(dataset_grouper)
  if found == expected:
    return ''
  hosts = sorted(
    host
    for host in found.keys() | expected.keys()
    if found.get(host) != expected.get(host)
  )
  return (
    f'{len(hosts)} of {len(found | expected)} groups differ, the first is '
    f'{hosts[0].decode()}: {len(found.get(hosts[0], ()))} examples of ours, '
    f'{len(expected.get(hosts[0], ()))} of Dataset Grouper'
  )


def _read(directory: str | os.PathLike) -> Groups:
  groups = collections.defaultdict(list)
  for path in sorted(glob.glob(os.path.join(directory, '*.tfrecord'))):
    for record in read_group_records(path):
      hosts = set()
      hashes = []
      for serialized in record.examples:
        example = records.decode_example(serialized)
        hosts.add(host_key({'url': example['url'].decode()}))
        values = [example[name] for name in FEATURE_NAMES]
        hashes.append(hashlib.sha256(b'\0'.join(values)).digest())
      # A record that mixes hosts differs from whatever the other job has.
      groups[b' and '.join(sorted(hosts))] += hashes
  return {host: sorted(hashes) for host, hashes in groups.items()}


def main() -> int:
  """Prints the difference; fails if there is one."""
  parser = argparse.ArgumentParser(description=main.__doc__)
  parser.add_argument('ours')
  parser.add_argument('dataset_grouper')
  arguments = parser.parse_args()
  found = difference(arguments.ours, arguments.dataset_grouper)
  print(found or 'the same groups of the same examples')
  return 1 if found else 0


if __name__ == '__main__':
  raise SystemExit(main())
