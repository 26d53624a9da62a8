"""Server solves of one-shot methods, over what clients uploaded."""
