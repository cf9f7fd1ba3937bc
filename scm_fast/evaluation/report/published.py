"""Published results to hold a report against. Their protocols differ: see the note of each row."""

from __future__ import annotations

from typing import NamedTuple

OWN_BEST = (
    "each metric its own best threshold and epoch on the test split; GT-Known with the best class's map"
)
FIXED = "fixed threshold 0.1 (CUB) or 0.12 (ILSVRC)"
MAXBOX = "best threshold on the test split"
AS_REPORTED = "as its paper reports it"


class PublishedRow(NamedTuple):
    """Percentages, None where the paper gives none."""

    data: str
    method: str
    backbone: str
    top1_loc: float | None
    top5_loc: float | None
    gt_known: float | None
    max_box_acc: float | None
    max_box_acc_v2: float | None
    protocol: str


ROWS = (
    PublishedRow("CUB", "TS-CAM", "DeiT-S", 71.3, 83.8, 87.7, None, None, FIXED),
    PublishedRow("CUB", "TS-CAM", "DeiT-S", None, None, None, 88.9, 79.6, MAXBOX),
    PublishedRow("CUB", "LCTR", "DeiT-S", 79.2, 89.9, 92.4, None, None, AS_REPORTED),
    PublishedRow("CUB", "SCM", "DeiT-S", 76.4, 91.6, 96.6, None, None, OWN_BEST),
    PublishedRow("CUB", "SCM", "DeiT-S", None, None, None, 96.6, 89.9, MAXBOX),
    PublishedRow("CUB", "SCM", "DeiT-T", None, None, 91.8, None, None, OWN_BEST),
    PublishedRow("CUB", "SCM", "DeiT-B", None, None, 93.8, None, None, OWN_BEST),
    PublishedRow("CUB", "SCM", "ViT-S", None, None, 91.0, None, None, OWN_BEST),
    PublishedRow("CUB", "SCM", "Conformer-S", None, None, 96.1, None, None, OWN_BEST),
    PublishedRow("CUB", "SPOL", "ResNet50 + EfficientNet-B7", 80.1, 93.4, 96.5, None, None, AS_REPORTED),
    PublishedRow("CUB", "SAT", "DeiT-S", 81.0, 94.1, 98.5, None, None, AS_REPORTED),
    PublishedRow("CUB", "GenPromp", "Stable Diffusion", 87.0, 96.1, 98.0, None, None, AS_REPORTED),
    PublishedRow("ILSVRC", "TS-CAM", "DeiT-S", 53.4, 64.3, 67.6, None, None, FIXED),
    PublishedRow("ILSVRC", "LCTR", "DeiT-S", 56.1, 65.8, 68.7, None, None, AS_REPORTED),
    PublishedRow("ILSVRC", "SCM", "DeiT-S", 56.1, 66.4, 68.8, None, None, OWN_BEST),
    PublishedRow("ILSVRC", "SPOL", "ResNet50 + EfficientNet-B7", 59.1, 67.2, 69.0, None, None, AS_REPORTED),
    PublishedRow("ILSVRC", "SAT", "DeiT-S", 60.2, 70.5, 73.1, None, None, AS_REPORTED),
    PublishedRow("ILSVRC", "GenPromp", "Stable Diffusion", 65.2, 73.4, 75.0, None, None, AS_REPORTED),
)
