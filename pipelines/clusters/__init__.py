"""Programs that start what Beam's runners need on other hosts."""
