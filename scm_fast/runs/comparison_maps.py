"""What several runs make of the same images, in one picture."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure

from ..errors import InputError
from ..models import load_model
from .maps import PANEL, TITLE, compute_maps, images_of_run, outline_boxes, show_image
from .reading import Run

COUNT = 6  # images, if none are named


def comparison_maps(runs: Sequence[Run], wanted: Sequence[str], device: torch.device) -> Figure:
    """A column per image: the image, and below it for each run its map with the box (red; the true one is green).

    wanted: image files, or images of the first run's test split by number or name; none for some of the split.
    """
    models = [load_model(run.kept_model) for run in runs]
    counts = sorted({model.config.num_classes for model in models})
    if len(counts) > 1:
        raise InputError(f"--maps: the runs have different classes, {' and '.join(map(str, counts))} of them")
    subjects = images_of_run(runs[0], models[0], wanted, None, COUNT)
    found = [compute_maps(model, subjects, device) for model in models]
    tallest = max(subject.image.size[1] / subject.image.size[0] for subject in subjects)
    size = (PANEL * len(subjects), (PANEL * tallest + TITLE / 2) * (1 + len(runs)))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(1 + len(runs), len(subjects), squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for column, image in enumerate(found[0]):
        show_image(grid[0, column], image, None, "image" if column == 0 else "")
    for row, (run, results) in enumerate(zip(runs, found, strict=True), 1):
        for column, result in enumerate(results):
            show_image(grid[row, column], result, result.activation, run.path.name if column == 0 else "")
            outline_boxes(grid[row, column], result)
    return figure
