"""Several runs of one config, side by side or in turn: `fedfish sweep`."""
