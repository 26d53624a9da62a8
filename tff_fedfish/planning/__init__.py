"""Plans: the cost of a run, computed before it is started."""
