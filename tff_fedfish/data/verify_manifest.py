"""Checks what a manifest says of the grouping against what else it says.

Nothing but the manifest knows the source, the key, the options and the raw
files, so that only what cannot be can be noticed.
"""

from collections.abc import Iterator

from tff_fedfish.data.manifest import MAX_INPUTS, InputFile, Manifest

# Fields of json_lines, and whether there must be one.
_FIELDS = {'key_field': True, 'text_field': True, 'time_field': False}
# What is possible of the options: the bounds of `fedfish group`.
_RANGES = {
  'num_shards': (1, 99_999),
  'max_record_bytes': (1, 1 << 30),
  'max_document_bytes': (1, 1 << 30),
  'max_examples_per_group': (1, 1 << 62),
}
# Records dropped from groups, and the option that asks for it.
_GROUP_DROPS = {
  'duplicate_text': 'drop_duplicates',
  'group_cap': 'max_examples_per_group',
}
_OTHER_SPLIT = 'other_split'


def find_fault(manifest: Manifest) -> str | None:
  """Returns the first thing that cannot be so, or None.

  Args:
    manifest: A manifest whose values have the right types.

  Returns:
    Text that goes on after the manifest's path, such as "must ..., but ...".
  """
  return next(
    (
      f'must have {what}, but has {found!r}'
      for is_right, what, found in _checks(manifest)
      if not is_right
    ),
    None,
  )


def _checks(manifest: Manifest) -> Iterator[tuple[bool, str, object]]:
  """Yields (whether something is right, what it must be, what it is)."""
  from pipelines.keys import KEYS
  from pipelines.source import SOURCE_NAMES

  features, options = manifest.feature_names, manifest.options
  corpus = manifest.corpus
  yield manifest.source in SOURCE_NAMES, 'a `corpus` that exists', corpus
  is_unique = len(set(features)) == len(features)
  yield is_unique, 'each of its `feature_names` once', features
  if manifest.source == 'json_lines':
    yield bool(corpus), 'a `corpus` with a name', corpus
    for name, is_required in _FIELDS.items():
      field = options.get(name)
      is_field = bool(field) and isinstance(field, str)
      is_right = is_field or (field is None and not is_required)
      yield is_right, f'the name of a field as `options.{name}`', field
    key = options['key_field']
    yield manifest.key == key, f'the `key` {key!r} of its options', manifest.key
    expected = ('text', 'timestamp')[: 1 + (options['time_field'] is not None)]
    yield features == expected, f'the `feature_names` {expected}', features
  else:
    key = manifest.key
    yield key in KEYS, f'a `key` of {", ".join(KEYS)}', key
    feature = 'author' if key == 'author' else 'url'
    yield feature in features, f'the feature {feature} of its `key`', features
  yield from _option_checks(manifest)
  yield from _input_checks(manifest)


def _option_checks(manifest: Manifest) -> Iterator[tuple[bool, str, object]]:
  options, drops = manifest.options, manifest.counts.drops
  for name, (low, high) in _RANGES.items():
    value = options.get(name)
    is_right = type(value) is int and low <= value <= high
    # An earlier version did not write all.
    is_absent = name == 'max_examples_per_group' or name not in options
    is_right |= value is None and is_absent and name != 'num_shards'
    yield is_right, f'a number from {low} to {high} as `options.{name}`', value
  num_shards = options['num_shards']
  is_right = num_shards == len(manifest.shards)
  what = f'`options.num_shards` {len(manifest.shards)}, as many as there are'
  yield is_right, what, num_shards
  name = 'drop_duplicates'
  value = options.get(name, False)
  yield isinstance(value, bool), f'true or false as `options.{name}`', value
  for reason, name in _GROUP_DROPS.items():
    what = f'an `options.{name}` that explains its drops by {reason}'
    value = options.get(name)
    yield reason not in drops or bool(value), what, value
  known = {*_RANGES, 'drop_duplicates'}
  if manifest.source == 'json_lines':
    known |= {'source', *_FIELDS}
  unknown = sorted(options.keys() - known)
  yield not unknown, f'no `options` but {", ".join(sorted(known))}', unknown


def _input_checks(manifest: Manifest) -> Iterator[tuple[bool, str, object]]:
  inputs, drops = manifest.inputs, manifest.counts.drops
  num_files = manifest.num_input_files
  has_all = len(inputs) == num_files
  has_damaged = num_files > MAX_INPUTS and all(file.damage for file in inputs)
  is_right = has_all or (has_damaged and len(inputs) < num_files)
  what = f'as `num_input_files` {len(inputs)}, as many as it lists'
  yield is_right and num_files > 0, what, num_files
  names = [file.name for file in inputs]
  yield all(map(_is_name, names)), 'relative paths of its `inputs`', names
  # In this order, so that the job's own does not matter.
  yield names == sorted(set(names)), 'the `inputs` sorted, each once', names
  for file in inputs:
    what = f'possible counts and damage of the input {file.name!r}'
    yield _is_possible(file, drops), what, file
  if has_all:
    # What is handed on is stored, or dropped from a group, here or elsewhere.
    reasons = (*_GROUP_DROPS, _OTHER_SPLIT)
    expected = manifest.counts.records_out
    expected += sum(drops.get(reason, 0) for reason in reasons)
    found = sum(file.records_out for file in inputs)
    what = f'`records_out` of its `inputs` that are {expected} together'
    yield found == expected, what, found
  examples = manifest.drop_examples
  yield examples.keys() == drops.keys(), 'an example of each drop', [*examples]
  name_to_records = {file.name: file.records_in for file in inputs}
  for reason, example in examples.items():
    if reason in _GROUP_DROPS:
      is_right = example.group is not None and example.file is None
    else:
      is_right = example.file is not None and example.group is None
      is_right &= example.line is not None and example.line >= 1
      if has_all and is_right:
        is_right = example.line <= name_to_records.get(example.file, 0)
    yield is_right, f'an example of {reason} in one of its `inputs`', example
  if split := manifest.split:
    is_right = split.name in split.names
    is_right &= len(set(split.names)) == len(split.names)
    yield is_right, 'a `split` with that name once among its names', split


def _is_name(name: str) -> bool:
  return all(part not in ('', '.', '..') for part in name.split('/'))


def _is_possible(file: InputFile, drops: object) -> bool:
  return file.records_out <= file.records_in and (
    file.damage in drops if file.damage else file.damage_byte is None
  )
