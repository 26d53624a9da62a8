"""Pure mathematics of methods: tensors in, tensors out."""
