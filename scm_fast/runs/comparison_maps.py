"""Draw what several models make of the same images, in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from ..data import DataSource
from ..errors import InputError
from ..evaluation.boxes import Located, locate
from ..evaluation.predictor import Predictor, Strategy
from ..models import load_classifier, load_model
from ..models.maps import map_names
from ..threshold import DEFAULT_THRESHOLD, Threshold, threshold_to_use
from .maps import PANEL, TITLE, Subject, images_of_split, outline_boxes, show_image
from .reading import Evaluated, Run

COUNT = 6  # images, if none are named


@dataclass(frozen=True)
class Viewer:
    """A model with its map and the threshold that cuts it."""

    predictor: Predictor
    threshold: Threshold

    def locate(self, subject: Subject) -> Located:
        """Locate by the map of the true class where it is known, else of the best class."""
        predictor = self.predictor
        pixels = predictor.preprocessing.prepare(subject.image).unsqueeze(0).to(predictor.device)

        def choose(logits: Tensor) -> Tensor:
            if subject.label is None or predictor.foreign_classes:
                return logits.argmax(1, keepdim=True)
            return torch.tensor([[subject.label]], device=logits.device)

        _, maps = predictor(predictor.preprocessing.normalize(pixels), choose)
        return locate(maps[0, 0].cpu().numpy(), self.threshold, subject.image.size)


def comparison_maps(
    folders: Sequence[Run | Evaluated], wanted: Sequence[str], device: torch.device
) -> Figure:
    """A column per image: it, and below it for each folder its map with the box (red; the true one is green).

    wanted: image files, or images of the first test split by number or name; none for some of the split.
    """
    viewers = [_viewer(folder, device) for folder in folders]
    own = [viewer.predictor.model for viewer in viewers if not viewer.predictor.foreign_classes]
    counts = sorted({model.config.num_classes for model in own})
    if len(counts) > 1:
        raise InputError(
            f"--maps: the models have different classes, {' and '.join(map(str, counts))} of them"
        )
    subjects = images_of_split(*_test_split(folders), own[0] if own else None, wanted, COUNT)
    tallest = max(subject.image.size[1] / subject.image.size[0] for subject in subjects)
    size = (PANEL * len(subjects), (PANEL * tallest + TITLE / 2) * (1 + len(folders)))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(1 + len(folders), len(subjects), squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for column, subject in enumerate(subjects):
        first = column == 0  # only there the rows have titles
        show_image(grid[0, column], subject.image, None, "image" if first else "")
        for row, (folder, viewer) in enumerate(zip(folders, viewers, strict=True), 1):
            located = viewer.locate(subject)
            title = folder.path.resolve().name if first else ""
            show_image(grid[row, column], subject.image, located.scores, title)
            outline_boxes(grid[row, column], subject.boxes, located.box)
    return figure


def _test_split(folders: Sequence[Run | Evaluated]) -> tuple[DataSource, str]:
    """Take the source from the first run, which knows best how to read the data, else from the first evaluation."""
    for folder in folders:
        if isinstance(folder, Run):
            return folder.config.source(), folder.config.test_split
    evaluation = folders[0].evaluation
    assert evaluation is not None
    return DataSource(evaluation["data"]), evaluation["split"]


def _viewer(folder: Run | Evaluated, device: torch.device) -> Viewer:
    """The model that a run kept, or the one that was evaluated, as it was evaluated."""
    if isinstance(folder, Run):
        model = load_model(folder.kept_model)
        return Viewer(Predictor(model.to(device), device), threshold_to_use(model.config.threshold).threshold)
    about = folder.evaluation
    if folder.foreign_classes:
        file = None if about["checkpoint"] == about["backbone"] else Path(about["checkpoint"])
        model = load_classifier(about["backbone"], file)
    else:
        model = load_model(about["checkpoint"])
    map_name = about["map"].removesuffix(", refined")
    predictor = Predictor(
        model.to(device),
        device,
        Strategy.parse(about["strategy"]),
        mirror=about["mirror"],
        map=map_name if map_name in map_names() else None,
        refine=map_name != about["map"],
        foreign_classes=folder.foreign_classes,
    )
    cut = about["threshold"], about["threshold_rule"], about["interpolation"]
    return Viewer(predictor, DEFAULT_THRESHOLD if cut[0] is None else Threshold(*cut))
