"""Files in object stores that speak S3, by few and large requests.

Beam's own module makes a client for every call, takes three requests to write
a small file, cannot write an empty one, and asks a store that does not answer
again and again for a quarter of an hour, without a word. Its options hold here,
too: `--s3_endpoint_url` and the others of `S3Options`, or AWS_* variables.
"""

import functools
import io
import os
from typing import Any

from apache_beam.io import filesystem, filesystemio
from apache_beam.io.aws import s3filesystem
from apache_beam.io.aws.clients.s3 import boto3_client
from apache_beam.io.aws.s3io import parse_s3_path
from apache_beam.options.pipeline_options import PipelineOptions, S3Options

from pipelines.remote_files import reaching

# With the pauses between them, half a minute on average. Other modes stop early
# where many requests fail at a time.
_ATTEMPTS = {'AWS_RETRY_MODE': 'legacy', 'AWS_MAX_ATTEMPTS': '7'}
_READ_ATTEMPTS = 4
_READ_BYTES = 16 << 20
_PART_BYTES = 32 << 20
_MAX_UPLOADED_PARTS = 4
# The store copies by itself, up to 5 GB in a request.
_COPIED_PART_BYTES = 1 << 30
_MAX_DELETED = 1000


class S3FileSystem(s3filesystem.S3FileSystem):
  """Does what Beam's class does, with fewer requests.

  Attributes:
    client: Of boto3. Shared by all that have the same options.
  """

  def __init__(self, pipeline_options: PipelineOptions | None):
    """Makes no request; takes a moment the first time."""
    super().__init__(pipeline_options)
    options = (pipeline_options or PipelineOptions([])).view_as(S3Options)
    found = options.get_all_options(drop_default=True, current_only=True)
    self.client = _make_client(tuple(sorted(found.items())))

  @classmethod
  def scheme(cls) -> str:
    """Returns what no path begins with, so that Beam goes on using its own."""
    return 's3-of-fedfish'

  def open(self, path: str, *_: Any, **__: Any) -> io.BufferedReader:
    """Opens a file for reading, as it is stored."""
    downloader = _Downloader(self, path)
    stream = filesystemio.DownloaderStream(downloader, _READ_BYTES)
    return io.BufferedReader(stream, _READ_BYTES)

  def upload(self, file_name: str, path: str) -> None:
    """Writes a local file to a path, where it appears whole or not at all."""
    from boto3.s3.transfer import TransferConfig

    config = TransferConfig(
      multipart_threshold=_PART_BYTES,
      multipart_chunksize=_PART_BYTES,
      max_concurrency=_MAX_UPLOADED_PARTS,
    )
    self.client.upload_file(file_name, *parse_s3_path(path), Config=config)

  def copy(
    self, source_file_names: list[str], destination_file_names: list[str]
  ) -> None:
    """Copies files inside the store."""
    from boto3.s3.transfer import TransferConfig

    config = TransferConfig(
      multipart_threshold=_COPIED_PART_BYTES,
      multipart_chunksize=_COPIED_PART_BYTES,
    )
    for source, target in zip(
      source_file_names, destination_file_names, strict=True
    ):
      self.client.copy(_at(source), *parse_s3_path(target), Config=config)

  def exists(self, path: str) -> bool:
    """Says whether there is a file."""
    from botocore.exceptions import ClientError

    try:
      self.size(path)
    except ClientError as error:
      if error.response['ResponseMetadata']['HTTPStatusCode'] != 404:
        raise
      return False
    return True

  def size(self, path: str) -> int:
    """Returns how many bytes a file has."""
    return self.client.head_object(**_at(path))['ContentLength']

  def metadata(self, path: str) -> filesystem.FileMetadata:
    """Returns path and size of a file."""
    return filesystem.FileMetadata(path, self.size(path))

  def delete(self, paths: list[str]) -> None:
    """Deletes files and, where a path ends with a slash, all below it.

    That includes what killed workers had begun to write, which nobody sees, but
    which takes space.
    """
    found, prefixes = [], []
    for path in paths:
      if not path.endswith('/'):
        found.append(path)
        continue
      found.extend(entry.path for entry in self._list(path))
      prefixes.append(parse_s3_path(path, object_optional=True))
    for i in range(0, len(found), _MAX_DELETED):
      some = list(map(_at, found[i : i + _MAX_DELETED]))
      answer = self.client.delete_objects(
        Bucket=some[0]['Bucket'],
        Delete={'Objects': [{'Key': at['Key']} for at in some], 'Quiet': True},
      )
      for error in answer.get('Errors', ()):
        raise OSError(f'{error["Key"]!r} was not deleted: {error["Message"]}')
    # Last: it needs a right that not everybody who may delete has.
    for bucket, prefix in prefixes:
      begun = self.client.list_multipart_uploads(Bucket=bucket, Prefix=prefix)
      for upload in begun.get('Uploads', ()):
        self.client.abort_multipart_upload(
          Bucket=bucket, Key=upload['Key'], UploadId=upload['UploadId']
        )

  def _list(self, dir_or_prefix):
    bucket, prefix = parse_s3_path(dir_or_prefix, object_optional=True)
    lists = self.client.get_paginator('list_objects_v2')
    for page in lists.paginate(Bucket=bucket, Prefix=prefix):
      for entry in page.get('Contents', ()):
        path = f's3://{bucket}/{entry["Key"]}'
        yield filesystem.FileMetadata(path, entry['Size'])


class _Downloader(filesystemio.Downloader):
  """Reads ranges of a file, each by one request."""

  def __init__(self, files: S3FileSystem, path: str):
    self._client = files.client
    self._path = path
    self._size = files.size(path)

  @property
  def size(self):
    return self._size

  def get_range(self, start, end):
    from botocore.exceptions import BotoCoreError

    place = f'bytes={start}-{end - 1}'
    with reaching(self._path):
      for attempt in range(_READ_ATTEMPTS):
        answer = self._client.get_object(**_at(self._path), Range=place)
        try:
          return answer['Body'].read()
        except BotoCoreError:
          # The client mends no answer that breaks off.
          if attempt == _READ_ATTEMPTS - 1:
            raise


def _at(path: str) -> dict[str, str]:
  bucket, key = parse_s3_path(path)
  return {'Bucket': bucket, 'Key': key}


# Making one takes a tenth of a second and more. Threads may share it.
@functools.lru_cache(4)
def _make_client(options: tuple[tuple[str, Any], ...]) -> Any:
  for name, value in _ATTEMPTS.items():
    os.environ.setdefault(name, value)
  return boto3_client.Client(options=dict(options)).client
