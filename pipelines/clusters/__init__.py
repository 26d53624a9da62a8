"""Runners of clusters, made to run a grouping job element by element."""
