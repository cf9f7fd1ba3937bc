"""Triton kernels, one module per operation. Nothing here queries a GPU when imported."""
