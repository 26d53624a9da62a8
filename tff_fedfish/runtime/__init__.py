"""Executes TFF computations; knows no algorithm."""
