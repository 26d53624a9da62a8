"""Asks every host of a Ray cluster for what `fedfish train` needs there."""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.runtime import ray_cluster, ray_hosts

# A host imports TensorFlow to list its devices.
_ANSWER_SECONDS = 120.0


class HostReport(NamedTuple):
  """Answers of a host beside those of this one."""

  name: str
  """Host name and address."""
  facts: dict[str, str]
  """Answers by question, ready to be shown."""
  problems: Sequence[str]
  """Everything that differs from this host or is missing."""
  remedy: str
  """Empty if there is no problem."""


def examine(
  address: str, config: TrainConfig | None = None
) -> list[HostReport]:
  """Returns a report on every host of a cluster, this one first.

  The address is 'auto' or HOST:PORT. The corpus and the vocabulary of a config
  are looked for; None: none are.

  Raises:
    UserError: If there is no cluster at the address.
    FailedError: If its head is gone.
  """
  paths = {}
  if config is not None:
    paths = {'corpus': config.data.directory}
    if not config.data.holds_images:
      paths['vocabulary'] = config.data.vocabulary
  paths = {k: str(pathlib.Path(p).resolve()) for k, p in paths.items()}
  ray_cluster.join(address, 1, '--ray_address')
  try:
    own = ray_hosts.own_node_id()
    hosts = sorted(
      ray_hosts.living(), key=lambda host: (host.node_id != own, host.name)
    )
    answers = ray_hosts.ask(
      hosts,
      [*paths.values()],
      with_devices=True,
      timeout_seconds=_ANSWER_SECONDS,
    )
  finally:
    ray_cluster.leave()
  here = ray_hosts.facts(paths.values())
  return [_report(host, answers[host], here, paths) for host in hosts]


def _report(host, answer, here, paths):
  versions, missing = ray_hosts.differences(here, answer)
  shown = {}
  if not isinstance(answer, str):
    shown = dict(answer.versions) | {
      name: answer.contents[path].text for name, path in paths.items()
    }
    shown['devices'] = ', '.join(answer.devices)
  remedies = []
  if versions:
    remedies.append('set up the Python environment of this machine there')
  if missing:
    remedies.append('copy or mount what is missing there under the same path')
  remedy = ', and '.join(remedies)
  return HostReport(
    host.name,
    shown,
    [*versions, *missing],
    remedy and f'{remedy[0].upper()}{remedy[1:]}; or `ray stop` it.',
  )
