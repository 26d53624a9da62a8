"""How any method becomes a learning process, and the local training loop."""
