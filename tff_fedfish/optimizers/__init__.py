"""Optimizers of clients and server, their cost, and learning-rate schedules."""
