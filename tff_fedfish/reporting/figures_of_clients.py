"""Plots with a point or a cell per client: personalization, barrier, affinity.

A method's barrier against the baseline's, client by client, is Figure 6 of
Dhawan et al. (2024), FedFish; their equation 5 defines the barrier.
"""

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from tff_fedfish.data.client_ids import client_id_to_cell, client_id_to_text
from tff_fedfish.reporting import keys, match
from tff_fedfish.reporting.match import Arm, Pair
from tff_fedfish.reporting.plots import Plot, plot
from tff_fedfish.reporting.runs import Subject
from tff_fedfish.reporting.scores import Scores, affinities
from tff_fedfish.reporting.style import Look, numbered_looks
from tff_fedfish.reporting.words import Words, capitalized

_MAX_ROUNDS = 5
_PLACE = ['seeds', 'round', 'client_id']


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


def barriers(scores: Scores, words: Words) -> Iterator[Plot | None]:
  """Yields the barrier of each method against the baseline's."""
  pairs = keys.grouped(
    (p for p in match.find_pairs(scores.arms) if p.is_against_baseline),
    lambda pair: pair.method,
  )
  for number, (method, found) in enumerate(pairs.items(), start=1):
    table = pd.concat(map(_both_barriers, found))
    yield plot(
      table,
      name='barrier' + f'_{number}' * (len(pairs) > 1),
      title=f'Client-Server Barrier, {method} and {found[0].baseline}',
      caption='A point per client of a round that both measured. Above the '
      f'diagonal the barrier is lower with {method}. It ranks nothing.',
      kind='scatter',
      x=f'{method} (nats per {words.unit})',
      y=f'{found[0].baseline} (nats per {words.unit})',
      diagonal=True,
      looks=numbered_looks(table['series'].unique()),
    )


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
  """Returns the clients whose barrier both sides measured in the same round."""
  table = _measured(pair.arm).merge(
    _measured(pair.baseline_arm), on=_PLACE, suffixes=('', '_baseline')
  )
  # A few rounds, the last among them.
  rounds = sorted(set(table['round']), reverse=True)
  step = -(-len(rounds) // _MAX_ROUNDS) or 1
  table = table[table['round'].isin(rounds[::step])]
  return table.assign(
    panel=pair.setting,
    series=table['round'].map('round {}'.format),
    point=table['client_id'].map(client_id_to_cell),
    x=table['loss'],
    y=table['loss_baseline'],
  )


def _measured(arm: Arm) -> pd.DataFrame:
  tables = [
    table.assign(seeds=run.seeds, round=round_num)
    for run in arm.runs
    for round_num, table in run.barriers_by_round().items()
  ]
  return pd.concat(tables or [pd.DataFrame(columns=[*_PLACE, 'loss'])])


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
