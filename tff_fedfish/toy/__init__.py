"""One round of two clients on a function of one input, small enough to see."""
