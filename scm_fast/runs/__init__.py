"""What can be learnt from run folders after, or while, they are written: plots and comparisons."""

from .reading import Evaluated, Run, read_folder, read_run

__all__ = ["Evaluated", "Run", "read_folder", "read_run"]
