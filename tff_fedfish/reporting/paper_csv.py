"""All numbers of the paper's tables, ours and theirs, as one CSV file."""

import csv
import io
from collections.abc import Sequence

from tff_fedfish.reporting.paper_tables import PaperTable
from tff_fedfish.reporting.tables import csv_text

_NAMES = (
  *('table', 'trained_on', 'setting', 'evaluated_on', 'evaluated_kind'),
  *('num_local_epochs', 'num_rounds'),
  *('method', 'stage', 'fraction', 'measure', 'mean', 'sd_over_seeds'),
  *('num_seeds', 'ci_low', 'ci_high', 'paper', 'paper_corpus', 'same_corpus'),
)


def paper_tables_csv(tables: Sequence[PaperTable]) -> str:
  """Returns the numbers one a line, in full precision, accuracies in [0, 1].

  Args:
    tables: Of `build_paper_tables`.
  """
  file = io.StringIO()
  writer = csv.writer(file, lineterminator='\n')
  writer.writerow(_NAMES)
  for table in tables:
    for row in table.rows:
      for column, cell in zip(table.columns, row.cells, strict=True):
        values = [
          table.number,
          csv_text(table.corpus),
          csv_text(table.setting),
          csv_text(row.evaluated_on),
          row.kind,
          row.num_local_epochs,
          '/'.join(map(str, row.num_rounds)),
          csv_text(row.method),
          column.stage,
          column.fraction,
          column.measure,
          *_ours(cell.ours),
          *_paper(table, cell.paper),
        ]
        writer.writerow(['' if v is None else v for v in values])
  return file.getvalue()


def _ours(interval):
  if interval is None:
    return (None,) * 5
  return (
    repr(interval.mean),
    interval.sd_over_seeds,
    len(interval.seed_means) or 1,
    interval.ci_low,
    interval.ci_high,
  )


def _paper(table, value):
  if value is None:
    return (None,) * 3
  # Differences of printed numbers have no more digits than these.
  is_same = 'yes' if table.task.is_same else 'no'
  return round(value, 6), table.task.corpus, is_same
