"""A GPU that computes nothing: what a GPU takes of PyTorch's CUDA build and Triton's launcher runs without one."""
