"""What a client trains: pure functions of explicit weights."""
