"""Tasks of Label Studio, with the boxes as predictions, and the labelling interface that they fit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from ..files import replacing
from .finding import Export, Finding, corner_and_size, rounded, unique_names, write_list

FROM, TO = "label", "image"  # the tags of the interface that a result belongs to


def export_label_studio(export: Export) -> Path:
    """Write `label_studio.json`, the tasks, and `label_studio.xml`, the interface.

    Images are named as local files below LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT, which must be the folder that
    has the image folder in it: Label Studio refuses a storage that is the root itself.
    """
    names = unique_names(export.class_names)
    labels = "".join(f"    <Label value={quoteattr(name)}/>\n" for name in names)
    interface = (
        f'<View>\n  <Image name="{TO}" value="${TO}"/>\n'
        f'  <RectangleLabels name="{FROM}" toName="{TO}">\n{labels}  </RectangleLabels>\n</View>\n'
    )
    with replacing(export.folder / "label_studio.xml") as partial:
        partial.write_text(interface, encoding="utf-8")
    path = export.folder / "label_studio.json"
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        write_list(file, _tasks(export, names))
        file.write("\n")
    return path


def _tasks(export: Export, names: Sequence[str]) -> Iterator[dict[str, object]]:
    # Not imported at the top: scm_fast itself imports much, and its version is there only then.
    from .. import __version__

    parent = os.path.basename(export.image_folder)
    for number, finding in enumerate(export.found, 1):
        path = f"{parent}/{export.name_of(finding)}" if parent else export.name_of(finding)
        result = [
            _result(f"{number}-{count}", finding, box, score, names[finding.label])
            for count, (box, score) in enumerate(finding.detections, 1)
        ]
        yield {
            "data": {TO: f"/data/local-files/?d={quote(os.fsencode(path))}"},
            "predictions": [
                {
                    "model_version": f"scm-fast {__version__}",
                    "score": max((score for _, score in finding.detections), default=0.0),
                    "result": result,
                }
            ],
        }


def _result(
    number: str, finding: Finding, box: Sequence[float], score: float, name: str
) -> dict[str, object]:
    width, height = finding.size
    x, y, w, h = corner_and_size(box)
    percent = [100 * x / width, 100 * y / height, 100 * w / width, 100 * h / height]
    return {
        "id": number,
        "type": "rectanglelabels",
        "from_name": FROM,
        "to_name": TO,
        "original_width": width,
        "original_height": height,
        "image_rotation": 0,
        "score": round(score, 6),
        "value": {
            **dict(zip(("x", "y", "width", "height"), rounded(percent), strict=True)),
            "rotation": 0,
            "rectanglelabels": [name],
        },
    }
