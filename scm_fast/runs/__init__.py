"""What can be learnt from run folders after, or while, they are written: plots and comparisons."""

from .reading import RunRecord, read_run

__all__ = ["RunRecord", "read_run"]
