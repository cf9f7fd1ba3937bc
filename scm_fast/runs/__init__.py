"""What can be learnt from run folders after, or while, they are written: plots and comparisons."""

from .reading import Run, read_run

__all__ = ["Run", "read_run"]
