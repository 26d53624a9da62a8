"""Images of the benchmarks: their files, and how clients come to hold them."""
