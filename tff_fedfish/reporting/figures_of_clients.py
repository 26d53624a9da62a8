"""Plots with a point or a cell per client: personalization, barrier, affinity.

A method's barrier against the baseline's, client by client, is Figure 6 of
Dhawan et al. (2024), FedFish; their equation 5 defines the barrier.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pandas as pd

from tff_fedfish.data.client_ids import client_id_to_cell, client_id_to_text
from tff_fedfish.methods.registry import BASELINE
from tff_fedfish.reporting import keys, match
from tff_fedfish.reporting.match import Arm, Pair
from tff_fedfish.reporting.plots import Plot, plot
from tff_fedfish.reporting.runs import Subject
from tff_fedfish.reporting.scores import Scores, affinities
from tff_fedfish.reporting.style import Look, numbered_looks
from tff_fedfish.reporting.words import Words, capitalized

_MAX_ROUNDS = 5


def before_and_after(
  scores: Scores,
  subject: Subject,
  name: str,
  words: Words,
  looks: Mapping[str, Look],
) -> Plot | None:
  """Returns each client's loss before and after personalization.

  It is at the largest fraction of each arm.
  """
  table = scores.clients
  table = table[(table['subject'] == str(subject)) & (table['fraction'] > 0)]
  largest = table.groupby('arm')['fraction'].transform('max')
  table = table[table['fraction'] == largest]
  return plot(
    table.assign(
      panel=table['arm'],
      series=table['arm'],
      point=table['client_id'].map(client_id_to_cell),
      x=table['loss_before'],
      y=table['loss_after'],
    ),
    name=f'{name}_before_after',
    title=f'{capitalized(str(subject))} before and after personalization',
    caption='A point per client. Above the diagonal personalization hurt it.',
    kind='scatter',
    x=f'Loss before (nats per {words.unit})',
    y='Loss after',
    diagonal=True,
    looks=looks,
  )


def barriers(
  scores: Scores, words: Words, looks: Mapping[str, Look]
) -> Iterator[Plot | None]:
  """Yields the barrier of each method against the baseline's.

  Without such a pair it is the loss of the new global weights against that of
  the clients' own, of every arm's last measured round.
  """
  unit = f'nats per {words.unit}'
  pairs = keys.grouped(
    (p for p in match.find_pairs(scores.arms) if p.is_against_baseline),
    lambda pair: pair.method,
  )
  tables = {
    method: pd.concat(map(_both_barriers, found))
    for method, found in pairs.items()
  }
  tables = {method: table for method, table in tables.items() if len(table)}
  for number, (method, table) in enumerate(tables.items(), start=1):
    yield plot(
      table,
      name='barrier' + f'_{number}' * (len(tables) > 1),
      title=f'Client-Server Barrier, {method} and {BASELINE.title}',
      caption='A point per client of a round that both measured. Above the '
      f'diagonal the barrier is lower with {method}. It ranks nothing.',
      kind='scatter',
      x=f'{method} ({unit})',
      y=f'{BASELINE.title} ({unit})',
      diagonal=True,
      looks=numbered_looks(table['series'].unique()),
    )
  if not tables:
    yield _own_and_global(scores.arms, unit, looks)


def affinity_maps(arms: Sequence[Arm]) -> Iterator[Plot | None]:
  """Yields what clients found each other's models worth, a map per arm."""
  for number, (arm, table) in enumerate(affinities(arms).items(), start=1):
    table = table.sort_values(['cluster', 'client_id', 'candidate_id'])
    clusters = dict(zip(table['client_id'], table['cluster'], strict=True))
    names = {
      client: f'{cluster}: ' * (cluster >= 0) + client_id_to_text(client)
      for client, cluster in clusters.items()
    }
    candidates = table['candidate_id']
    others = candidates.map(names).fillna(candidates.map(client_id_to_text))
    yield plot(
      table.assign(
        series=table['client_id'].map(names),
        point=table['candidate_id'].map(client_id_to_cell),
        x=others,
        y=table['affinity'],
      ),
      name=f'affinity_{number}',
      title=f'Affinity of clients, {arm}',
      caption='Row: a client. Column: the client whose model it was sent. '
      'Above 0 the model lowered the client’s validation loss, summed over '
      'rounds. Names begin with the cluster of the client’s data. '
      f'{_mean_affinities(table, clusters)}',
      kind='heat',
      x='Candidate',
      y='Client',
    )


def _both_barriers(pair: Pair) -> pd.DataFrame:
  """Returns the barriers of the clients of rounds that both sides measured."""
  baselines = {run.seeds: run for run in pair.baseline_arm.runs}
  tables = [pd.DataFrame()]
  for run in pair.arm.runs:
    if run.seeds not in baselines:
      continue
    theirs = baselines[run.seeds].barriers_by_round()
    for round_num, own in run.barriers_by_round().items():
      if round_num in theirs:
        table = own.merge(
          theirs[round_num], on='client_id', suffixes=('', '_baseline')
        )
        tables.append(
          table.assign(
            round=round_num,
            panel=pair.setting,
            series=f'round {round_num}',
            point=table['client_id'].map(client_id_to_cell),
            x=table['loss'],
            y=table['loss_baseline'],
          )
        )
  table = pd.concat(tables)
  return (
    table[table['round'].isin(_some(table['round']))] if len(table) else table
  )


def _some(rounds: Iterable[int]) -> list[int]:
  """Returns up to `_MAX_ROUNDS` of the rounds, the last among them."""
  ordered = sorted(set(rounds), reverse=True)
  return ordered[:: -(-len(ordered) // _MAX_ROUNDS)]


def _own_and_global(
  arms: Sequence[Arm], unit: str, looks: Mapping[str, Look]
) -> Plot | None:
  tables = [
    list(measured.values())[-1].assign(series=arm.label)
    for arm in arms
    for run in arm.runs
    if (measured := run.barriers_by_round())
  ]
  if not tables:
    return None
  table = pd.concat(tables)
  return plot(
    table.assign(
      point=table['client_id'].map(client_id_to_cell),
      x=table['local_loss'],
      y=table['global_loss'],
    ),
    name='barrier',
    title='Client-Server Barrier',
    caption='A point per client of the last measured round. The height above '
    'the diagonal is its barrier.',
    kind='scatter',
    x=f'Loss of the client’s own weights ({unit})',
    y='Loss of the new global weights',
    diagonal=True,
    looks=looks,
  )


def _mean_affinities(table: pd.DataFrame, clusters: Mapping[bytes, int]) -> str:
  """Returns the means between different clients, within and across clusters."""
  others = table[table['client_id'] != table['candidate_id']]
  own = others['cluster']
  theirs = others['candidate_id'].map(clusters).fillna(-1)
  is_known = (own >= 0) & (theirs >= 0)
  groups = {
    'within clusters': others[is_known & (own == theirs)],
    'across clusters': others[is_known & (own != theirs)],
  }
  if not len(groups['across clusters']):
    groups = {'between clients': others}
  means = ', '.join(
    f'{kind} {rows["affinity"].mean():+.3f}'.replace('-', '−')
    for kind, rows in groups.items()
    if len(rows)
  )
  return f'Mean affinity: {means}.'
