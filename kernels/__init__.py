"""Triton kernels, one module an operation. Nothing here queries a GPU when imported."""
