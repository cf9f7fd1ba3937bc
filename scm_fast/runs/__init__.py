"""Plots and comparisons of run folders, after or while they are written."""

from .reading import Evaluated, Run, read_folder, read_run

__all__ = ["Evaluated", "Run", "read_folder", "read_run"]
