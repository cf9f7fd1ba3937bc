"""Boxes as files that other tools read, of `predict` and of `evaluate`.

What is written is read image by image, more than once where a format wants it, and never held as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .coco import export_coco, write_coco
from .finding import Export, Finding, FoundBoxes
from .folders import check_replaceable, export_voc, export_yolo, is_exported
from .label_studio import export_label_studio
from .tables import corner_columns, export_csv, export_json, write_csv

# What `predict --format` offers. Each returns the file or folder that it wrote.
FORMATS: dict[str, Callable[[Export], Path]] = {
    "json": export_json,
    "coco": export_coco,
    "csv": export_csv,
    "yolo": export_yolo,
    "voc": export_voc,
    "labelstudio": export_label_studio,
}

__all__ = [
    "FORMATS",
    "Export",
    "Finding",
    "FoundBoxes",
    "check_replaceable",
    "corner_columns",
    "is_exported",
    "write_coco",
    "write_csv",
]
