"""Scatters of clients before and after personalization."""

from collections.abc import Callable, Iterable, Sequence

from tff_fedfish.data.client_id_text import client_id_to_cell, client_id_to_text
from tff_fedfish.evaluation.results import ClientEvaluation
from tff_fedfish.reporting import figures
from tff_fedfish.reporting.evaluations import Evaluation
from tff_fedfish.reporting.figure_numbers import record
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.style import RunStyle
from tff_fedfish.reporting.words import words_of

# Beyond this many points a vector picture gets slow to draw and large.
_MAX_VECTOR_POINTS = 2_000
_MAX_TITLE_CHARACTERS = 26


def personalization_scatter(
  runs: Sequence[Run],
  styles: dict[str, RunStyle],
  *,
  choose: Callable[[Run], Evaluation | None],
  name: str,
  subject: str,
) -> figures.Figure | None:
  """Returns each client's loss after against before personalization.

  Args:
    runs: The runs of the report.
    styles: Their looks, by label.
    choose: Returns the evaluation of a run to show, or None.
    name: File name without suffix.
    subject: Whose clients were scored, such as 'held-out clients'.

  Returns:
    A figure with one panel per run, at the run's largest fraction; None if no
    run has scores per client.
  """
  panels = {}
  for run in runs:
    evaluation = choose(run)
    fraction = evaluation.largest_client_fraction() if evaluation else None
    if fraction is not None:
      panels[run.label] = (fraction, evaluation.clients_at(fraction))
  if not panels:
    return None
  columns = min(2 if len(panels) <= 4 else 4, len(panels))
  rows = -(-len(panels) // columns)
  with figures.styled(2.9 * columns + 0.3, 2.8 * rows + 0.3) as figure:
    grid = figure.subplots(
      rows, columns, squeeze=False, sharex=True, sharey=True
    )
    low, high = padded_limits(
      value
      for _, clients in panels.values()
      for client in clients
      for value in (client.loss_before, client.loss_after)
    )
    for axes, (label, (_, clients)) in zip(
      grid.flat, panels.items(), strict=False
    ):
      draw_diagonal(axes, low, high)
      draw_points(
        axes,
        [client.loss_before for client in clients],
        [client.loss_after for client in clients],
        styles[label].marker_arguments(),
      )
      record_clients(axes, label, [client.client_id for client in clients])
      heading = figures.drawable(label, _MAX_TITLE_CHARACTERS)
      axes.set_title(f'{heading}\nimproved: {_improved(clients)}')
    for axes in grid.flat[len(panels) :]:
      axes.set_visible(False)
    _label_x_below(grid, len(panels))
    unit = f'nats per {words_of(runs).unit}'
    figure.supxlabel(f'Loss before ({unit})', fontsize=11)
    figure.supylabel(f'Loss after ({unit})', fontsize=11)
    title = f'{subject[:1].upper()}{subject[1:]}: before and after'
    shares = '; '.join(
      f'on {100 * fraction:g} %, '
      + ', '.join(
        f'{label}: {_improved(clients)}'
        for label, (own, clients) in panels.items()
        if own == fraction
      )
      for fraction in sorted({own for own, _ in panels.values()})
    )
    without = [run.label for run in runs if run.label not in panels]
    return figures.render(
      figure,
      name=name,
      title=title,
      caption='One point per client'
      + (
        ', its mean over the seeds' if any(r.repetitions for r in runs) else ''
      )
      + '; below the dashed diagonal, '
      'personalization lowered the loss on data it did not see. Clients '
      f'improved by fine-tuning on a share of their data: {shares}.'
      + (f' No scores per client: {"; ".join(without)}.' if without else ''),
      alternative_text=f'Scatter plots of loss after against loss before '
      f'personalization, one per run. Clients improved: {shares}.',
    )


def extreme_clients(
  evaluation: Evaluation, num_each: int
) -> list[tuple[str, float, float]]:
  """Returns the clients that gained most and those that lost most.

  Args:
    evaluation: An evaluation with scores per client.
    num_each: How many from either end; fewer if there are fewer clients.

  Returns:
    (client id as text, loss before, loss after) at the largest fraction, by
    ascending change of the loss. Ties are ordered by client id.
  """
  fraction = evaluation.largest_client_fraction()
  if fraction is None:
    return []
  clients = sorted(
    evaluation.clients_at(fraction),
    key=lambda c: (c.loss_after - c.loss_before, c.client_id),
  )
  if len(clients) > 2 * num_each:
    clients = clients[:num_each] + clients[-num_each:]
  return [
    (client_id_to_text(c.client_id), c.loss_before, c.loss_after)
    for c in clients
  ]


def draw_points(axes, x: list[float], y: list[float], look: dict) -> None:
  """Draws one translucent point per client."""
  arguments = {**look, 'markersize': 4.2, 'markeredgewidth': 0.9}
  axes.plot(
    x,
    y,
    linestyle='none',
    alpha=0.65,
    rasterized=len(x) > _MAX_VECTOR_POINTS,
    **arguments,
  )


def record_clients(axes, series: str, client_ids: Iterable[bytes]) -> None:
  """Keeps the points drawn last for the figure's CSV file, one per client."""
  x, y = axes.lines[-1].get_data()
  record(axes, series, x, y, points=map(client_id_to_cell, client_ids))


def draw_diagonal(axes, low: float, high: float) -> None:
  """Draws the line of equal values and makes both axes span [low, high]."""
  axes.plot([low, high], [low, high], color='#777777', linestyle=(0, (4, 3)))
  axes.lines[-1].set_linewidth(1.0)
  axes.set_xlim(low, high)
  axes.set_ylim(low, high)
  axes.set_aspect('equal')
  axes.locator_params(nbins=6)


def share_text(count: int, total: int) -> str:
  """Returns a share as words that keep the count, such as '3 of 4 (75 %)'."""
  return f'{count} of {total} ({100 * count / total:.0f} %)'


def padded_limits(values: Iterable[float]) -> tuple[float, float]:
  """Returns the range of the values, a little wider; never empty."""
  values = list(values)
  low, high = min(values), max(values)
  pad = 0.05 * (high - low) or 0.5
  return low - pad, high + pad


def _improved(clients: Sequence[ClientEvaluation]) -> str:
  count = sum(client.loss_after < client.loss_before for client in clients)
  return share_text(count, len(clients))


def _label_x_below(grid, num_panels):
  """Shows tick labels under the last panel of every column."""
  columns = grid.shape[1]
  for position in range(max(0, num_panels - columns), num_panels):
    grid.flat[position].tick_params(labelbottom=True)
