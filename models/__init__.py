"""Models: pure functions of explicit weights."""
