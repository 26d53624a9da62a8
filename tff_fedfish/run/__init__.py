"""Files, data and learning process of a run."""
