"""Scatters of clients before and after personalization."""

import collections
from collections.abc import Iterable, Sequence

import pandas as pd

from tff_fedfish.data.client_ids import client_id_to_cell, client_id_to_text
from tff_fedfish.reporting import figures
from tff_fedfish.reporting.evaluations import Evaluation
from tff_fedfish.reporting.runs import Run, Subject
from tff_fedfish.reporting.style import run_styles
from tff_fedfish.reporting.words import capitalized, words_of

# Beyond this many points a vector picture gets slow to draw and large.
_MAX_VECTOR_POINTS = 2_000
_MAX_TITLE_CHARACTERS = 26


def personalization_scatter(
  runs: Sequence[Run], *, subject: Subject, name: str
) -> figures.Figure | None:
  """Returns each client's loss after against before personalization.

  The figure `name` has one panel per run, at the run's largest fraction. None
  if no run has scores per client of the subject.
  """
  panels = {}
  for run in runs:
    evaluation = run.evaluation(subject)
    fraction = evaluation.largest_client_fraction() if evaluation else None
    if fraction is not None:
      panels[run.label] = evaluation.clients_at(fraction)
  if not panels:
    return None
  shares = collections.defaultdict(list)
  for label, clients in panels.items():
    words = f'{label}: {_improved(clients)}'
    shares[clients['fraction'].iloc[0]].append(words)
  improved = '; '.join(
    f'on {100 * fraction:g} %, {", ".join(words)}'
    for fraction, words in sorted(shares.items())
  )
  caption = (
    'One point per client'
    + (', its mean over the seeds' if any(r.repetitions for r in runs) else '')
    + '; below the dashed diagonal, personalization lowered the loss on data '
    'it did not see. Clients improved by fine-tuning on a share of their data: '
    f'{improved}.'
  )
  if without := [run.label for run in runs if run.label not in panels]:
    caption += f' No scores per client: {"; ".join(without)}.'
  styles = run_styles(runs)
  columns = min(2 if len(panels) <= 4 else 4, len(panels))
  rows = -(-len(panels) // columns)
  with figures.styled(2.9 * columns + 0.3, 2.8 * rows + 0.3) as figure:
    _, grid = figures.facets(
      figure, len(panels), columns, sharex=True, sharey=True
    )
    losses = pd.concat(panels.values())[['loss_before', 'loss_after']]
    limits = padded_limits(losses.to_numpy().ravel())
    for axes, (label, clients) in zip(grid, panels.items(), strict=True):
      draw_diagonal(axes, *limits)
      losses = clients['loss_before'], clients['loss_after']
      look = styles[label].marker_arguments()
      draw_clients(axes, label, clients, *losses, look)
      heading = figures.drawable(label, _MAX_TITLE_CHARACTERS)
      axes.set_title(f'{heading}\nimproved: {_improved(clients)}')
    # Tick labels under the last panel of every column.
    for axes in grid[-columns:]:
      axes.tick_params(labelbottom=True)
    unit = f'nats per {words_of(runs).unit}'
    figure.supxlabel(f'Loss before ({unit})', fontsize=11)
    figure.supylabel(f'Loss after ({unit})', fontsize=11)
    return figures.render(
      figure,
      name=name,
      title=f'{capitalized(str(subject))}: before and after',
      caption=caption,
      alternative_text=f'Scatter plots of loss after against loss before '
      f'personalization, one per run. Clients improved: {improved}.',
    )


def extreme_clients(
  evaluation: Evaluation, num_each: int
) -> list[tuple[str, float, float]]:
  """Returns up to `num_each` clients that gained most, and that lost most.

  They are (client id as text, loss before, loss after) at the evaluation's
  largest fraction, by ascending change of the loss, then by client id.
  """
  clients = evaluation.clients_at(evaluation.largest_client_fraction())
  clients = clients.assign(
    change=clients['loss_after'] - clients['loss_before']
  ).sort_values(['change', 'client_id'])
  if len(clients) > 2 * num_each:
    clients = pd.concat([clients[:num_each], clients[-num_each:]])
  return [
    (client_id_to_text(c.client_id), c.loss_before, c.loss_after)
    for c in clients.itertuples()
  ]


def draw_points(axes, x: Sequence[float], y: Sequence[float], look) -> None:
  """Draws one translucent point per client."""
  axes.plot(
    x,
    y,
    linestyle='none',
    alpha=0.65,
    rasterized=len(x) > _MAX_VECTOR_POINTS,
    **{**look, 'markersize': 4.2, 'markeredgewidth': 0.9},
  )


def draw_clients(axes, series, clients: pd.DataFrame, x, y, look) -> None:
  """Draws and records a point per client of a table with `client_id`."""
  draw_points(axes, x, y, look)
  points = map(client_id_to_cell, clients['client_id'])
  figures.record(axes, series, x, y, points=points)


def draw_diagonal(axes, low: float, high: float) -> None:
  """Draws the line of equal values and makes both axes span [low, high]."""
  axes.plot([low, high], [low, high], color='#777777', linestyle=(0, (4, 3)))
  axes.lines[-1].set_linewidth(1.0)
  axes.set_xlim(low, high)
  axes.set_ylim(low, high)
  axes.set_aspect('equal')
  axes.locator_params(nbins=6)


def share_text(is_counted: Iterable[bool]) -> str:
  """Returns a share as words that keep the count, such as '3 of 4 (75 %)'."""
  found = list(is_counted)
  count = sum(found)
  return f'{count} of {len(found)} ({100 * count / len(found):.0f} %)'


def padded_limits(values: Iterable[float]) -> tuple[float, float]:
  """Returns the range of the values, a little wider; never empty."""
  values = list(values)
  low, high = min(values), max(values)
  pad = 0.05 * (high - low) or 0.5
  return low - pad, high + pad


def _improved(clients: pd.DataFrame) -> str:
  return share_text(clients['loss_after'] < clients['loss_before'])
