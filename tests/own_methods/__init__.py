"""Methods outside the package, as CONTRIBUTING.md shows them."""
