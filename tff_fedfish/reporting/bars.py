"""Mean scores by personalization fraction, with 95 % intervals.

Accuracy is drawn as bars from 0. Losses lie close together far from 0, where
bars would hide both differences and intervals: they are drawn as points.
"""

from collections.abc import Callable, Sequence

from matplotlib import lines, patches

from tff_fedfish.reporting import figures
from tff_fedfish.reporting.evaluations import Evaluation
from tff_fedfish.reporting.figure_numbers import record
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.style import RunStyle
from tff_fedfish.reporting.words import interval_sample, words_of

_MAX_LABELLED_BARS = 24


def fraction_bars(
  runs: Sequence[Run],
  styles: dict[str, RunStyle],
  *,
  choose: Callable[[Run], Evaluation | None],
  name: str,
  subject: str,
) -> list[figures.Figure]:
  """Returns loss and accuracy by fraction for one evaluation of each run.

  Args:
    runs: The runs of the report.
    styles: Their looks, by label.
    choose: Returns the evaluation of a run to show, or None.
    name: Prefix of the file names.
    subject: Whose clients were scored, such as 'held-out clients'.

  Returns:
    Up to two figures, loss first; none if no run was evaluated.
  """
  evaluations = {
    run.label: evaluation for run in runs if (evaluation := choose(run))
  }
  without = [run.label for run in runs if run.label not in evaluations]
  words = words_of(runs)
  drawn = []
  for measure, scale, better in (
    ('loss', 1.0, 'Lower'),
    ('accuracy', 100.0, 'Higher'),
  ):
    scores = _scores(evaluations, measure)
    if not scores:
      continue
    caption = (
      f'{better} is better. Mean over {subject}, scored on the same half of '
      'each client’s data after fine-tuning on none, or on a fraction, of '
      'the other half; fractions are of the client’s whole data. Whiskers: '
      f'95 % bootstrap intervals over {interval_sample(evaluations.values())}.'
    )
    if measure == 'loss':
      caption += ' The vertical axis does not start at 0.'
    if without:
      caption += f' Not evaluated: {"; ".join(without)}.'
    drawn.append(
      _score_figure(
        scores,
        styles,
        axis=words.label(measure),
        scale=scale,
        is_bar=measure == 'accuracy',
        name=f'{name}_{measure}',
        title=f'{measure.capitalize()} on {subject}',
        caption=caption,
      )
    )
  return drawn


def _scores(evaluations, measure):
  """Returns {label: {fraction: interval}} without what was not measured."""
  scores = {}
  for label, evaluation in evaluations.items():
    found = {
      fraction: interval
      for fraction, score in evaluation.fractions.items()
      if (interval := getattr(score, measure))
    }
    if found:
      scores[label] = found
  return scores


def _score_figure(scores, styles, *, axis, scale, is_bar, name, title, caption):
  fractions = sorted({f for found in scores.values() for f in found})
  width = 0.84 / len(scores)
  num_bars = len(fractions) * len(scores)
  with figures.styled(figures.fitting_width(0.42 * num_bars)) as figure:
    axes = figure.add_subplot()
    for position, (label, found) in enumerate(scores.items()):
      offset = (position - (len(scores) - 1) / 2) * width
      for group, fraction in enumerate(fractions):
        if fraction in found:
          ends = _draw_score(
            axes,
            group + offset,
            found[fraction],
            scale=scale,
            width=width,
            look=styles[label],
            is_bar=is_bar,
            is_labelled=num_bars <= _MAX_LABELLED_BARS,
          )
          mean = scale * found[fraction].mean
          record(axes, label, [100 * fraction], [mean], **ends)
    axes.set_xticks(range(len(fractions)), [f'{100 * f:g}' for f in fractions])
    axes.tick_params(axis='x', length=0)
    axes.grid(visible=False, axis='x')
    axes.set_xlabel('Client’s data used for personalization (%)')
    axes.set_ylabel(axis)
    axes.margins(y=0.12)
    if is_bar:
      axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.set_xlim(-0.55, len(fractions) - 0.45)
    figures.add_legend(
      figure,
      [
        patches.Patch(label=figures.drawable(label), **_face(styles[label]))
        if is_bar
        else lines.Line2D(
          [],
          [],
          linestyle='none',
          label=figures.drawable(label),
          **styles[label].marker_arguments(),
        )
        for label in scores
      ],
    )
    return figures.render(
      figure,
      name=name,
      title=title,
      caption=caption,
      alternative_text=_describe(title, scores, scale, is_bar),
    )


def _draw_score(axes, x, interval, *, scale, width, look, is_bar, is_labelled):
  mean = scale * interval.mean
  if is_bar:
    axes.bar(x, mean, width=0.94 * width, **_face(look))
  top = mean
  if interval.ci_low is not None:
    top = max(mean, scale * interval.ci_high)
  ends = figures.draw_whisker(
    axes,
    x,
    interval,
    color='#222222' if is_bar else look.color,
    scale=scale,
    linewidth=1.1 if is_bar else 1.5,
  )
  if not is_bar:
    axes.plot(x, mean, **{**look.marker_arguments(), 'markersize': 7})
  if is_labelled:
    axes.annotate(
      f'{mean:.2f}' if scale == 1.0 else f'{mean:.1f}',
      (x, top),
      xytext=(0, 2 if is_bar or interval.ci_low is not None else 6),
      textcoords='offset points',
      ha='center',
      va='bottom',
      fontsize=8.0,
      color='#222222',
    )
  return ends


def _face(look):
  return {
    'facecolor': look.shade,
    'edgecolor': look.color if not look.hatch else 'white',
    'hatch': look.hatch,
    'linewidth': 0.6,
  }


def _describe(title, scores, scale, is_bar):
  parts = []
  for label, found in scores.items():
    values = ', '.join(
      (f'{i.mean:.3f}' if scale == 1.0 else f'{100 * i.mean:.1f} %')
      + f' at {100 * fraction:g} %'
      for fraction, i in found.items()
    )
    parts.append(f'{label}: {values}')
  kind = 'Bar chart' if is_bar else 'Dot chart'
  return (
    f'{kind}, {title[:1].lower()}{title[1:]} by share of the client’s data '
    f'used for personalization. {"; ".join(parts)}.'
  )
