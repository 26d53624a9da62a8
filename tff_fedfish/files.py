"""Files that appear whole or not at all; JSON that is checked; safe CSV."""

import contextlib
import csv
import dataclasses
import errno
import hashlib
import io
import itertools
import json
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from tff_fedfish import json_values
from tff_fedfish.errors import UserError

LOCK_NAME = '.lock'
"""File that a process locks while it writes a directory; it stays there."""

_Schema = TypeVar('_Schema')
_HASH = 'sha256'


@contextlib.contextmanager
def naming(path: str | os.PathLike) -> Iterator[None]:
  """Names a file in errors of the disk that name none, as those of a write."""
  try:
    yield
  except OSError as error:
    if error.filename is not None or error.errno is None:
      raise
    raise OSError(error.errno, error.strerror, os.fspath(path)) from error


@contextlib.contextmanager
def write_atomically(path: str | os.PathLike, mode: str = 'w') -> Iterator[Any]:
  """Opens a temporary file beside `path` and renames it on success.

  Args:
    path: The file to write. Its directory must exist.
    mode: 'w' for UTF-8 text with Unix line ends, 'wb' for bytes.

  Yields:
    The open temporary file. An exception inside removes it and leaves whatever
    stood at `path` untouched.
  """
  path = pathlib.Path(path)
  text = {} if 'b' in mode else {'encoding': 'utf-8', 'newline': '\n'}
  descriptor, temporary = tempfile.mkstemp(
    dir=path.parent, prefix=f'.{path.name}.'
  )
  try:
    with naming(path), os.fdopen(descriptor, mode, **text) as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.chmod(temporary, 0o666 & ~umask())
    os.replace(temporary, path)
  except BaseException:
    with contextlib.suppress(FileNotFoundError):
      os.unlink(temporary)
    raise


@contextlib.contextmanager
def write_directory_atomically(
  path: str | os.PathLike, *, marker: str, replaced: Collection[str] = ()
) -> Iterator[pathlib.Path]:
  """Yields a temporary directory that becomes `path` on success.

  A new `path` appears whole. Into one that exists, which may be a mount point
  or the current directory of a shell, entries are renamed one by one.

  Args:
    path: The directory to write.
    marker: Entry that says that the directory is complete; it comes last.
    replaced: Entries that may stand at `path`, and are removed. No other may
      have the name of a new one.

  Yields:
    The temporary directory. An exception, inside or later, removes it and
    leaves `path` as it was.
  """
  path = pathlib.Path(path)
  place = path if path.is_dir() else path.parent
  place.mkdir(parents=True, exist_ok=True)
  temporary = _make_temporary(place, path.name)
  try:
    with naming(path):
      yield temporary
      sync(temporary)
    if place == path:
      _move_entries(temporary, path, marker, replaced)
    else:
      os.chmod(temporary, 0o777 & ~umask())
      os.replace(temporary, path)
    sync(place)
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def _move_entries(
  source: pathlib.Path,
  target: pathlib.Path,
  marker: str,
  replaced: Collection[str],
) -> None:
  """Renames entries into a directory instead of others; all or none."""
  aside = _make_temporary(target, target.name)
  moves = [
    (target / name, aside / name)
    for name in sorted(replaced, key=lambda name: name != marker)
    if (target / name).exists()
  ]
  moves += [
    (source / name, target / name)
    for name in sorted(
      os.listdir(source), key=lambda name: (name == marker, name)
    )
  ]
  with contextlib.ExitStack() as undo:
    undo.callback(aside.rmdir)
    for path, new_path in moves:
      if new_path.exists():
        raise FileExistsError(errno.EEXIST, 'File exists', str(new_path))
      os.rename(path, new_path)
      undo.callback(os.rename, new_path, path)
    undo.pop_all()
  shutil.rmtree(aside, ignore_errors=True)


def _make_temporary(directory: pathlib.Path, name: str) -> pathlib.Path:
  return pathlib.Path(tempfile.mkdtemp(dir=directory, prefix=f'.{name}.'))


def parse_json(text: str | bytes) -> Any:
  """Returns what JSON text, or its UTF-8 bytes, holds.

  Raises:
    ValueError: If it is no JSON, or is nested more deeply than Python parses,
      for which the `json` module raises no ValueError.
  """
  try:
    return json.loads(text)
  except RecursionError as error:
    raise ValueError('it is nested too deeply') from error


class NewerSchemaError(ValueError):
  """A JSON file of a later schema than this version of fedfish reads.

  Attributes:
    version: The file's `schema_version`.
    newest: The newest one that is read.
  """

  def __init__(self, version: int, newest: int):
    super().__init__(f'it has schema version {version}')
    self.version, self.newest = version, newest


def read_json(path: str | os.PathLike, *, schema: type[_Schema]) -> _Schema:
  """Reads a JSON file with a `schema_version` into a dataclass.

  Raises:
    OSError: If the file cannot be read.
    ValueError: See `from_json_object`; also if it is no JSON.
  """
  text = pathlib.Path(path).read_text(encoding='utf-8')
  return from_json_object(parse_json(text), schema=schema)


def from_json_object(
  value: Any,
  *,
  schema: type[_Schema],
  upgrade: Callable[[dict[str, Any]], dict[str, Any]] = lambda value: value,
) -> _Schema:
  """Returns a JSON object with a `schema_version` as a dataclass.

  Names that `schema` lacks are left out at the top level, as later releases may
  add some; within it they are errors.

  Args:
    value: As `parse_json` returns it.
    schema: A dataclass with the annotations that `json_values.from_json` takes.
      The default of its `schema_version` is the newest version that is read.
    upgrade: Adds to the object what earlier releases did not write. It is
      called once the version is known.

  Raises:
    NewerSchemaError: If its version is newer.
    json_values.WrongValueError: If it holds other values; names one of them.
  """
  name = 'schema_version'
  fields = {field.name: field for field in dataclasses.fields(schema)}
  json_values.require(isinstance(value, dict), '', 'an object', value)
  version = json_values.from_json(int, value.get(name), name)
  if version > fields[name].default:
    raise NewerSchemaError(version, fields[name].default)
  json_values.require(version >= 1, name, 'at least 1', version)
  value = upgrade(value)
  known = {key: value[key] for key in value if key in fields}
  return json_values.from_json(schema, known, '')


@contextlib.contextmanager
def explained(
  path: str | os.PathLike, what: str, advice: str
) -> Iterator[None]:
  """Turns errors of reading a JSON file that fedfish wrote into UserErrors.

  Args:
    path: The file.
    what: What it must hold, such as 'the corpus of a run'.
    advice: What to do if it does not, a sentence.
  """
  try:
    yield
  except NewerSchemaError as error:
    raise UserError(
      f'{str(path)!r} must have schema version {error.newest} or older, found '
      f'{error.version}. Update fedfish.'
    ) from error
  except (OSError, ValueError, RecursionError) as error:
    raise UserError(
      f'{str(path)!r} must hold {what}, but cannot be read ({error}). {advice}'
    ) from error


def with_hash(value: dict[str, Any]) -> dict[str, Any]:
  """Returns a JSON object with the SHA-256 of its values, as `sha256`.

  It does not depend on their order, nor on the layout of a file.
  """
  text = json.dumps(value, sort_keys=True)
  return value | {_HASH: hashlib.sha256(text.encode()).hexdigest()}


def require_hash(value: dict[str, Any]) -> dict[str, Any]:
  """Returns a JSON object that `with_hash` made.

  Raises:
    json_values.WrongValueError: If it was changed.
  """
  rest = {name: value[name] for name in value if name != _HASH}
  right = with_hash(rest)[_HASH]
  found = value.get(_HASH)
  what = f'{right}, that of the other values'
  json_values.require(found == right, _HASH, what, found)
  return value


def write_json(path: str | os.PathLike, value: Any) -> None:
  """Writes `value` as indented JSON, atomically, with a final newline."""
  with write_atomically(path) as file:
    json.dump(value, file, indent=2, ensure_ascii=False)
    file.write('\n')


def require_usable_output(
  path: str | os.PathLike, option: str, *, marker: str | None = None
) -> pathlib.Path:
  """Checks, before any work, that `path` can become our output directory.

  Args:
    path: The directory that the user named. Created later, not here.
    option: The option as typed, such as `--workdir`; named in the error.
    marker: A file whose presence says that an existing directory is one of
      ours and may be continued, such as `config.json`. None: it must be empty.

  Returns:
    The path, absolute and without links.

  Raises:
    UserError: If the path is a file, holds something else, or cannot be
      written to.
  """
  path = pathlib.Path(path).resolve()
  try:
    if path.exists():
      if not path.is_dir():
        raise UserError(
          f'`{option}` must be a directory, but {str(path)!r} is a file. '
          'Name another path.'
        )
      # A killed process may have left the beginning of what it wrote.
      own = (f'.{marker}.', f'.{path.name}.', LOCK_NAME)
      found = sorted(
        entry.name for entry in path.iterdir() if not entry.name.startswith(own)
      )
      if found and (marker is None or marker not in found):
        expected = 'be empty or new' + (f', or hold {marker}' if marker else '')
        raise UserError(
          f'`{option}` must {expected}, but {str(path)!r} already holds '
          f'{found[0]!r}{f" and {len(found) - 1} more" * (len(found) > 1)}. '
          'Name another directory, or remove it first.'
        )
    place = path
    while not place.exists():
      place = place.parent
    # A probe, not `os.access`: that answers yes for root on a read-only disk.
    with tempfile.TemporaryFile(dir=place):
      pass
  except OSError as error:
    raise UserError(
      f'`{option}` must be writable, but {str(path)!r} is not '
      f'({error.strerror}). Name another directory, or change its '
      'permissions.'
    ) from error
  return path


def are_same(first: str | os.PathLike, second: str | os.PathLike) -> bool:
  """Returns whether two paths are spellings of one; neither need exist."""
  return os.path.realpath(first) == os.path.realpath(second)


def sha256_of(path: str | os.PathLike) -> str:
  """Returns the SHA-256 of a file's bytes, in hexadecimal."""
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def difference(
  path: pathlib.Path, num_bytes: int, sha256: str | None = None
) -> str:
  """Returns what a file must have but has not, as a clause; '' if it is whole.

  Its bytes are read only if there is a SHA-256 to compare.

  Raises:
    OSError: If it cannot be read.
  """
  size = path.stat().st_size
  if size != num_bytes:
    return f'must have {num_bytes} bytes, but has {size}'
  if sha256 is not None:
    found = sha256_of(path)
    if found != sha256:
      return f'must have SHA-256 {sha256}, but has {found}'
  return ''


def sync(path: str | os.PathLike) -> None:
  """Flushes a file, or the names in a directory, to the disk.

  Raises:
    OSError: If it cannot be, except where the file system flushes only files.
  """
  descriptor = os.open(path, os.O_RDONLY)
  try:
    with naming(path):
      os.fsync(descriptor)
  except OSError as error:
    is_refusal = error.errno in (errno.EINVAL, errno.ENOTSUP)
    if not is_refusal or not os.path.isdir(path):
      raise
  finally:
    os.close(descriptor)


def umask() -> int:
  """Returns the permissions that new files of this process are denied."""
  # `os.umask` would have to set it, for all threads, to read it.
  status = pathlib.Path('/proc/self/status').read_text(encoding='utf-8')
  (mask,) = re.findall(r'^Umask:\s*([0-7]+)$', status, re.MULTILINE)
  return int(mask, 8)


def csv_file(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
  """Returns a CSV file with numbers in full precision.

  Args:
    names: The header.
    rows: Cells. None is empty. A text that a spreadsheet would take for a
      formula begins with an apostrophe.
  """
  cells = (map(_csv_cell, row) for row in rows)
  return csv_lines(itertools.chain([names], cells))


def csv_lines(rows: Iterable[Iterable[Any]]) -> str:
  """Returns lines of a CSV file, of cells as they are."""
  lines = io.StringIO()
  csv.writer(lines, lineterminator='\n').writerows(rows)
  return lines.getvalue()


def _csv_cell(value: Any) -> Any:
  if value is None:
    return ''
  if isinstance(value, str):
    formula = ('=', '+', '-', '@', '\t', '\r')
    return f"'{value}" if value.startswith(formula) else value
  # NumPy's scalars: a Python number is written exactly.
  return value.item() if hasattr(value, 'item') else value
