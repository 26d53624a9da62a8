"""Experiment configurations: values only."""
