"""Server solvers of the one-shot methods: uploads in, weights out."""
