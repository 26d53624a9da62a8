"""Checks a manifest against what the shards hold and what else it says.

Nothing but the manifest knows the source, the key, the options and the raw
files, so that of these only what cannot be can be noticed.
"""

from collections.abc import Iterator
from typing import Any

from tff_fedfish.data.manifest import MAX_INPUTS, Manifest

# The bounds of `fedfish group`.
_RANGES = {
  'max_record_bytes': (1, 1 << 30),
  'max_document_bytes': (1, 1 << 30),
  'max_examples_per_group': (1, 1 << 62),
  'drop_duplicates': (False, True),
}
# Drops from groups, and the option that asks for them.
_GROUP_DROPS = {
  'duplicate_text': 'drop_duplicates',
  'group_cap': 'max_examples_per_group',
}


def find_fault(manifest: Manifest) -> str | None:
  """Returns the first thing that cannot be so, or None.

  Args:
    manifest: A manifest whose values have the right types.

  Returns:
    Text that goes on after the manifest's path, such as "must ..., but ...".
  """
  checks = (_grouping_checks, _option_checks, _input_checks, _drop_checks)
  return next(
    (
      f'must have {what}, but has {found!r}'
      for check in checks
      for is_right, what, found in check(manifest)
      if not is_right
    ),
    None,
  )


def find_wrong_count(manifest: Manifest, **held: int) -> str | None:
  """Returns the first count that is not what the corpus holds, or None.

  Args:
    manifest: See `find_fault`.
    **held: Fields of `Counts`, and what the shards hold of each.

  Returns:
    See `find_fault`.
  """
  counts = manifest.counts
  # What the manifest says of itself, once records_out is known to be right.
  held['records_in'] = counts.records_out + sum(counts.drops.values())
  for name, found in held.items():
    if (value := getattr(counts, name)) != found:
      return (
        f'must say {name} {found}, which is what the corpus holds'
        f'{" and dropped" * (name == "records_in")}, but says {value}'
      )
  # Of very many files, only the damaged ones are listed.
  has_all = len(manifest.inputs) == manifest.num_input_files
  num_read = sum(file.records_in for file in manifest.inputs)
  if has_all and num_read != counts.records_in:
    return (
      'must say of its inputs that their records_in are '
      f'{counts.records_in} together, as it says of the corpus, but they are '
      f'{num_read}'
    )
  return None


_Checks = Iterator[tuple[bool, str, Any]]
"""(Whether something is right, what it must be, what it is)."""


def _grouping_checks(manifest: Manifest) -> _Checks:
  # Light modules.
  from pipelines.keys import KEYS
  from pipelines.source import SOURCE_NAMES

  corpus, key, options = manifest.corpus, manifest.key, manifest.options
  yield manifest.source in SOURCE_NAMES, 'a `corpus` that exists', corpus
  if manifest.source != 'json_lines':
    yield key in KEYS, f'a `key` of {", ".join(KEYS)}', key
    feature, features = _key_feature(key), manifest.feature_names
    yield feature in features, f'the feature {feature} of its `key`', features
    return
  yield bool(corpus), 'a `corpus` with a name', corpus
  for name in ('key_field', 'text_field', 'time_field'):
    field = options.get(name)
    is_right = isinstance(field, str) and field != ''
    is_right |= field is None and name == 'time_field'
    yield is_right, f'the name of a field as `options.{name}`', field
  field = options['key_field']
  yield key == field, f'the `key` {field!r} of its `options`', key


def _key_feature(key: str) -> str:
  return 'author' if key == 'author' else 'url'


def _option_checks(manifest: Manifest) -> _Checks:
  options, num_shards = manifest.options, len(manifest.shards)
  found = options.get('num_shards')
  is_right = type(found) is int and found == num_shards
  yield is_right, f'the `options.num_shards` {num_shards}, as it lists', found
  for name, (low, high) in _RANGES.items():
    # Earlier versions did not write all.
    value = options.get(name, low)
    is_right = type(value) is type(low) and low <= value <= high
    is_right |= value is None and name == 'max_examples_per_group'
    yield is_right, f'{low} to {high} as `options.{name}`', value


def _input_checks(manifest: Manifest) -> _Checks:
  inputs, num_files = manifest.inputs, manifest.num_input_files
  is_right = num_files == len(inputs) > 0 or (
    num_files > max(MAX_INPUTS, len(inputs))
    and all(file.damage for file in inputs)
  )
  yield is_right, f'the `num_input_files` {len(inputs)}, as it lists', num_files
  names = [file.name for file in inputs]
  is_right = all(
    part not in ('', '.', '..') for name in names for part in name.split('/')
  )
  # In this order, so that the job's own does not matter.
  is_right &= names == sorted(set(names))
  yield is_right, 'relative paths, sorted, as names of its `inputs`', names
  for file in inputs:
    is_right = file.records_out <= file.records_in
    is_right &= not file.damage or file.damage in manifest.counts.drops
    yield is_right, 'counts and damage of its `inputs` that can be', file


def _drop_checks(manifest: Manifest) -> _Checks:
  drops, options = manifest.counts.drops, manifest.options
  examples = manifest.drop_examples
  yield examples.keys() == drops.keys(), 'an example of each drop', [*examples]
  file_to_records = {file.name: file.records_in for file in manifest.inputs}
  has_all = len(file_to_records) == manifest.num_input_files
  for reason, example in examples.items():
    option = _GROUP_DROPS.get(reason)
    if option is not None:
      what = f'an `options.{option}` that explains its drops by {reason}'
      yield bool(options.get(option)), what, options.get(option)
      is_right = example.group is not None
    else:
      is_right = example.file is not None and (example.line or 0) >= 1
      if has_all and is_right:
        is_right = example.line <= file_to_records.get(example.file, 0)
    yield is_right, f'an example of {reason} in one of its `inputs`', example
  if has_all:
    # What reading hands on is stored, or dropped from a group, or is another
    # part's.
    reasons = (*_GROUP_DROPS, 'other_split')
    num_handed_on = manifest.counts.records_out
    num_handed_on += sum(drops.get(reason, 0) for reason in reasons)
    found = sum(file.records_out for file in manifest.inputs)
    what = f'the `records_out` {num_handed_on} of its `inputs` together'
    yield found == num_handed_on, what, found
