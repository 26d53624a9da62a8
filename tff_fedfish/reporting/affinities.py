"""Heat maps of what clients found each other's models worth."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tff_fedfish.data.client_ids import client_id_to_cell, client_id_to_text
from tff_fedfish.reporting import figures
from tff_fedfish.reporting.runs import OWN_TEST, Run
from tff_fedfish.reporting.words import shown

_COLORS = 'RdBu'  # Distinct under colour blindness; white at 0.
_ABSENT = '#c4c4c4'
_MAX_LABELLED_CLIENTS = 30
_MAX_LABELLED_CLUSTERS = 20
# Beyond this many cells a vector picture gets slow to draw and large.
_MAX_VECTOR_CELLS = 2_000


def affinity_maps(runs: Sequence[Run]) -> list[figures.Figure]:
  """Returns a heat map per pooled run whose clients weigh others' models."""
  drawn = []
  for run in runs:
    evaluation = run.evaluation(OWN_TEST)
    if evaluation is not None and len(evaluation.affinities):
      name = f'affinity_{len(drawn) + 1}'
      drawn.append(_figure(name, run.label, evaluation))
  return drawn


def affinity_matrix(table: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
  """Returns affinities, a table of `results.Affinity`, as a square.

  Returns:
    Rows are clients and columns candidates, both by cluster and client id; NaN
    where a pair has no value. The cluster of each, int [clients]; -1: none,
    or not known as the client has no row in the table.
  """
  clusters = dict(zip(table['client_id'], table['cluster'], strict=True))
  clients = sorted(
    {*clusters, *table['candidate_id']},
    key=lambda client: (client not in clusters, clusters.get(client), client),
  )
  matrix = table.pivot(
    index='client_id', columns='candidate_id', values='affinity'
  ).reindex(index=clients, columns=clients)
  return matrix, np.array([clusters.get(client, -1) for client in clients])


def mean_affinities(matrix: np.ndarray, clusters: np.ndarray) -> dict[str, Any]:
  """Returns the finite values between different clients, by kind of pair.

  Kinds are 'within clusters' and 'across clusters' where clients of at least
  two clusters are there, otherwise 'between clients'. The matrix is float
  [clients, clients]; `affinity_matrix` returns both.
  """
  is_pair = np.isfinite(matrix) & ~np.eye(len(matrix), dtype=bool)
  is_known = clusters >= 0
  if len(set(clusters[is_known])) < 2:
    return {'between clients': matrix[is_pair]}
  is_pair &= is_known[:, np.newaxis] & is_known
  is_same = clusters[:, np.newaxis] == clusters
  return {
    'within clusters': matrix[is_pair & is_same],
    'across clusters': matrix[is_pair & ~is_same],
  }


def _figure(name, label, evaluation) -> figures.Figure:
  matrix, clusters = affinity_matrix(evaluation.affinities)
  clients, values = list(matrix.index), matrix.to_numpy(float)
  own = np.diag(values)
  others = np.where(np.eye(len(values), dtype=bool), np.nan, values)
  means = (
    f'{kind} {_mean(found)} ({len(found):,} pairs)'
    for kind, found in mean_affinities(values, clusters).items()
  )
  means = f'Mean affinity: {", ".join(means)}, for themselves {_mean(own)}'
  caption = (
    'Row: a client. Column: the client whose model it was sent. Affinity: the '
    'sum over rounds of what the model did for the client’s validation loss; '
    'above 0 it helped, 0 is also a pair without any exchange. Grey: the '
    f'client itself, or no finite value. {means}.'
  )
  if values.size <= _MAX_VECTOR_CELLS:
    caption += ' A dash marks a value below 0.'
  if evaluation.num_seeds > 1:
    caption += f' Means over {evaluation.num_seeds} seeds.'
  if (clusters >= 0).any():
    caption += ' Lines separate the clusters of the clients’ data.'
  with figures.styled(height=4.9) as figure:
    axes = figure.add_subplot()
    _draw(figure, axes, others, clusters)
    _label(axes, clients, clusters)
    cells = list(map(client_id_to_cell, clients))
    for client, row in zip(cells, values, strict=True):
      found = [None if np.isnan(value) else value for value in row]
      series = f'{label}: {client}'
      figures.record(axes, series, range(len(cells)), found, points=cells)
    return figures.render(
      figure,
      name=name,
      title=f'Affinity of clients, {label}',
      caption=caption,
      alternative_text=f'Heat map of the affinity of {len(clients)} clients '
      f'for each other, {label}. {means}.',
    )


def _draw(figure, axes, others, clusters) -> None:
  finite = np.abs(others[np.isfinite(others)])
  limit = finite.max(initial=0.0) or 1.0
  is_small = others.size <= _MAX_VECTOR_CELLS
  mesh = axes.pcolormesh(
    np.ma.masked_invalid(others),
    cmap=_COLORS,
    vmin=-limit,
    vmax=limit,
    rasterized=not is_small,
    **({'edgecolors': 'white', 'linewidth': 0.4} if is_small else {}),
  )
  axes.set_facecolor(_ABSENT)
  axes.grid(visible=False)
  axes.set_aspect('equal')
  axes.invert_yaxis()
  if is_small:  # Both ends of the colours are dark in grey.
    rows, columns = np.nonzero(others < 0)
    places = columns + 0.5, rows + 0.5
    axes.plot(*places, '_', color='#222222', markersize=3.5)
  for edge in np.flatnonzero(np.diff(clusters)) + 1:
    axes.axhline(edge, color='#222222', linewidth=1.2)
    axes.axvline(edge, color='#222222', linewidth=1.2)
  bar = figure.colorbar(mesh, ax=axes, shrink=0.8)
  bar.set_label('Affinity')
  bar.outline.set_visible(False)


def _label(axes, clients: Sequence[bytes], clusters: np.ndarray) -> None:
  """Names the clients, and above them the clusters, where there is room."""
  axes.set_ylabel('Client')
  axes.set_xlabel('Candidate')
  axes.tick_params(length=0)
  axes.set_xticks([])
  axes.set_yticks([])
  if len(clients) <= _MAX_LABELLED_CLIENTS:
    places = np.arange(len(clients)) + 0.5
    names = [figures.drawable(client_id_to_text(c), 14) for c in clients]
    axes.set_xticks(places, names, rotation=90, fontsize=7)
    axes.set_yticks(places, names, fontsize=7)
  found = np.unique(clusters[clusters >= 0])
  if len(found) <= _MAX_LABELLED_CLUSTERS:
    for cluster in found:
      center = np.flatnonzero(clusters == cluster).mean() + 0.5
      place = {'xy': (center, 1), 'xycoords': axes.get_xaxis_transform()}
      axes.annotate(
        f'{cluster}' if len(found) > 5 else f'Cluster {cluster}',
        **place,
        xytext=(0, 3),
        textcoords='offset points',
        ha='center',
        fontsize=8,
      )


def _mean(values: Iterable[float]) -> str:
  finite = [value for value in values if np.isfinite(value)]
  return shown(float(np.mean(finite)), 3, sign='+') if finite else '–'
