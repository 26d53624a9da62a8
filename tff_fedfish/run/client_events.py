"""Clients that a run has dropped for their time: events.csv.

A round is a function of config, seeds and corpus, and of who was too slow on
that day. The file tells the last part, so that a run which is resumed from an
earlier checkpoint repeats it: rounds that were done before drop whom they
dropped then and nobody else, however long the others take.
"""

import csv
import dataclasses
import io
import os
import pathlib
import typing
from collections.abc import Iterable, Sequence

from tff_fedfish import files
from tff_fedfish.data.client_ids import client_id_to_cell, text_to_client_id
from tff_fedfish.errors import UserError
from tff_fedfish.runtime.client_data import ClientLoader, DroppedClientError

if typing.TYPE_CHECKING:
  from tff_fedfish.run.cohort_data import TrainingClient

FILE_NAME = 'events.csv'
_COLUMNS = ['round', 'client_id', 'event']
_TIMEOUT, _DONE = 'client_timeout', 'round_done'


@dataclasses.dataclass(frozen=True)
class DroppedClient(ClientLoader):
  """A client that a round dropped before, and drops again."""

  client_id: bytes

  def load(self):
    """Raises DroppedClientError."""
    raise DroppedClientError(f'it was dropped before, as {FILE_NAME} says')


class ClientEvents:
  """Reads events.csv, and adds the rounds that follow.

  Args:
    run_directory: The run's directory; it may not exist yet.
    is_on: Whether clients have a limit. Without, the file is only continued
      where there is one.

  Raises:
    UserError: If the file is damaged.
  """

  def __init__(self, run_directory: str | os.PathLike, is_on: bool):
    self._path = pathlib.Path(run_directory) / FILE_NAME
    self._is_on = is_on or self._path.exists()
    self._dropped: dict[int, set[bytes]] = {}
    self._last_done = 0
    # A last line that is cut off, and a round that is not done, do not count.
    self._num_bytes = 0
    if self._path.exists():
      self._read()

  def is_done(self, round_num: int) -> bool:
    """Returns whether it is known whom a round drops."""
    return round_num <= self._last_done

  def clients(
    self, round_num: int, clients: Sequence['TrainingClient']
  ) -> list['TrainingClient | DroppedClient']:
    """Returns a round's clients; those that it dropped before fail at once."""
    dropped = self._dropped.get(round_num, ())
    return [
      DroppedClient(client.client_id) if client.client_id in dropped else client
      for client in clients
    ]

  def start(self, round_num: int) -> None:
    """Begins the file, unless it is there, and removes what does not count.

    Args:
      round_num: The last round that is done; until it nobody was dropped where
        the file is new.
    """
    if not self._is_on:
      return
    if not self._num_bytes:
      with files.write_atomically(self._path) as file:
        file.write(files.csv_lines([_COLUMNS]))
      if round_num > 0:
        self._append([[round_num, '', _DONE]])
      self._last_done = round_num
    else:
      os.truncate(self._path, self._num_bytes)

  def record(self, round_num: int, dropped: Iterable[bytes]) -> None:
    """Adds a round that is done, unless it was done before.

    Dropped are the clients whose time was over.

    Raises:
      OSError: If it cannot be written.
    """
    if not self._is_on or self.is_done(round_num):
      return
    self._append(
      [
        *([round_num, client_id_to_cell(c), _TIMEOUT] for c in dropped),
        [round_num, '', _DONE],
      ]
    )
    self._last_done = round_num

  def _append(self, rows):
    with open(self._path, 'ab') as file:
      file.write(files.csv_lines(rows).encode())
      file.flush()
      os.fsync(file.fileno())

  def _read(self):
    num_bytes, pending = 0, {}
    for number, line in enumerate(self._path.read_bytes().splitlines(True), 1):
      num_bytes += len(line)
      if not line.endswith(b'\n'):
        break
      try:
        (row,) = csv.reader(io.StringIO(line.decode()))
        if number == 1:
          is_right = row == _COLUMNS
        else:
          round_num, client, event = int(row[0]), row[1], row[2]
          is_right = len(row) == 3 and (event == _DONE) != bool(client)
          is_right &= event in (_TIMEOUT, _DONE)
      except (ValueError, IndexError, csv.Error):
        is_right = False
      if not is_right:
        raise UserError(
          f'{str(self._path)!r} must hold round, client_id and event in every '
          f'line, but line {number} does not. Restore the file.'
        )
      if number == 1:
        self._num_bytes = num_bytes
      elif event == _TIMEOUT:
        pending.setdefault(round_num, set()).add(text_to_client_id(client))
      else:
        self._dropped[round_num] = pending.pop(round_num, set())
        self._last_done, self._num_bytes = round_num, num_bytes
