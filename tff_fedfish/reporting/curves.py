"""Learning curves: scores against rounds and against communicated units."""

from collections.abc import Callable, Sequence

from matplotlib import lines

from tff_fedfish.reporting import figures
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.style import RunStyle

LOSS_LABEL = 'loss (nats per token)'
ACCURACY_LABEL = 'token accuracy (%)'
_MAX_MARKERS = 12


def learning_curves(
  runs: Sequence[Run], styles: dict[str, RunStyle]
) -> list[figures.Figure]:
  """Returns loss and accuracy against rounds, held-out and in training.

  Args:
    runs: The runs of the report.
    styles: Their looks, by label.

  Returns:
    One figure per metric that any run has.
  """
  sample = (
    'Measured during training on the same fixed sample of held-out clients; '
    'round 0 is before training.'
  )
  train = (
    'Mean over the tokens of all local steps of the round’s cohort, each '
    'batch scored just before the step that learns from it; every round has '
    'another cohort, and later local epochs have seen the batch before.'
  )
  wanted = (
    ('held_out/loss', 'held_out_loss', f'Held-out {LOSS_LABEL}', 1.0, sample),
    (
      'held_out/accuracy',
      'held_out_accuracy',
      f'Held-out {ACCURACY_LABEL}',
      100.0,
      sample,
    ),
    (
      'train/loss',
      'train_loss',
      f'Train {LOSS_LABEL}',
      1.0,
      train,
    ),
    (
      'train/accuracy',
      'train_accuracy',
      f'Train {ACCURACY_LABEL}',
      100.0,
      train,
    ),
  )
  drawn = []
  for metric, name, label, scale, caption in wanted:
    figure = _curve_figure(
      runs,
      styles,
      x=('round', 'Round'),
      y=(metric, label),
      scale=scale,
      name=f'curve_{name}',
      title=f'{label.split(" (")[0]} against round',
      caption=caption,
    )
    if figure:
      drawn.append(figure)
  return drawn


def communication_curves(
  runs: Sequence[Run], styles: dict[str, RunStyle]
) -> list[figures.Figure]:
  """Returns held-out accuracy against uplink and against total communication.

  Args:
    runs: The runs of the report.
    styles: Their looks, by label.

  Returns:
    One figure per kind of communication that any run reports.
  """
  drawn = []
  for kind, label in (
    ('uplink', 'Uplink'),
    ('total', 'Uplink and downlink'),
  ):
    figure = _curve_figure(
      runs,
      styles,
      x=(f'communication/{kind}_units', f'{label} (units, cumulative)'),
      y=('held_out/accuracy', f'Held-out {ACCURACY_LABEL}'),
      scale=100.0,
      name=f'communication_{kind}',
      title=f'Held-out accuracy against {label.lower()}',
      caption=f'Further up and to the left is better. {label}, summed over '
      'the rounds so far; one unit is one model of float32 of a client that '
      'takes part in every round.',
    )
    if figure:
      drawn.append(figure)
  return drawn


def _curve_figure(
  runs, styles, *, x, y, scale, name, title, caption
) -> figures.Figure | None:
  series = {run.label: run.series(x[0], y[0]) for run in runs}
  if not any(series.values()):
    return None
  with figures.styled() as figure:
    axes = figure.add_subplot()
    handles = []
    for run in runs:
      points = series[run.label]
      if not points:
        continue
      look = styles[run.label].line_arguments()
      every = max(1, -(-len(points) // _MAX_MARKERS))
      axes.plot(
        [point[0] for point in points],
        [scale * point[1] for point in points],
        markevery=every,
        **look,
      )
      label = figures.drawable(run.label)
      handles.append(lines.Line2D([], [], label=label, **look))
    axes.set_xlabel(x[1])
    axes.set_ylabel(y[1])
    axes.xaxis.set_major_locator(figures.whole_numbers())
    axes.margins(x=0.03)
    places = {point[0] for points in series.values() for point in points}
    if len(places) == 1:
      axes.set_xlim(min(places) - 1, max(places) + 1)
    figures.add_legend(figure, handles)
    without = [run.label for run in runs if not series[run.label]]
    if without:
      caption += f' No such values yet: {"; ".join(without)}.'
    return figures.render(
      figure,
      name=name,
      title=title,
      caption=caption,
      alternative_text=_describe(
        title, x[1], series, _formatter(scale), x_is_round=x[0] == 'round'
      ),
    )


def _describe(title, x_label, series, shown, *, x_is_round) -> str:
  """Says where each curve starts and ends."""
  unit = 'round ' if x_is_round else f'{x_label.split(" (")[0].lower()} '
  parts = [
    f'{label}: {shown(points[0][1])} at {unit}{points[0][0]:g}, '
    f'{shown(points[-1][1])} at {unit}{points[-1][0]:g}'
    for label, points in series.items()
    if points
  ]
  return f'Line chart, {title[:1].lower()}{title[1:]}. {"; ".join(parts)}.'


def _formatter(scale: float) -> Callable[[float], str]:
  if scale == 100.0:
    return lambda value: f'{100 * value:.1f} %'
  return lambda value: f'{value:.3f}'
