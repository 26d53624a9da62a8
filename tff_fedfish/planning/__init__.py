"""What a run will take, worked out before it is started."""
