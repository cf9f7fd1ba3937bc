"""The maps of a trained model on some images, after every calibration block."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from PIL import Image

from ..data import DataSource, LocalizationDataset
from ..data.images import load_image
from ..errors import InputError
from ..evaluation.boxes import locate, resize_map
from ..evaluation.classes import match_classes
from ..evaluation.predictor import Predictor
from ..models import LocalizationModel
from ..overlay import blend
from ..threshold import threshold_to_use

Box = Sequence[float]  # x0, y0, x1, y1 in pixels of the image
PANEL = 1.6  # inches, width of a panel
TITLE = 0.3  # inches, above each panel
OPACITY = 0.55
LARGEST = (448, 448)  # pixels of a panel
TRUTH, FOUND = "lime", "red"


@dataclass(frozen=True)
class Subject:
    """An image to look at; label and boxes if it is of a data set."""

    name: str
    image: Image.Image
    label: int | None = None
    boxes: Sequence[Box] = ()


@dataclass(frozen=True)
class BlockMaps:
    """The maps and box of one image. Index 0 is as the network gives it, index l after block l."""

    subject: Subject
    label: int  # the class that the semantic maps are of: the true one where it is known, else the best
    best: int
    score: float  # softmax probability of the best class
    semantic: list[NDArray[np.float32]]  # S^l, each (H, W); empty for a model without
    attention: list[NDArray[np.float32]]  # F^l, each (H, W)
    activation: NDArray[np.float64]  # F^0 * S^0 at the evaluation size, in [0, 1]
    box: Box


def choose_subjects(dataset: LocalizationDataset | None, wanted: Sequence[str]) -> list[Subject]:
    """Image files, and images of the data set by their number or their name in it."""
    subjects = []
    names = {} if dataset is None else {record.id: index for index, record in enumerate(dataset.records)}
    for word in wanted:
        if Path(word).is_file():
            subjects.append(Subject(Path(word).name, load_image(word)))
            continue
        if dataset is None:
            raise InputError(f"{word}: no such file")
        index = names.get(word, int(word) if word.isdigit() else -1)
        if not 0 <= index < len(dataset):
            raise InputError(
                f"{word}: neither a file, nor the name of an image of split {dataset.split} of {dataset.root}, "
                f"such as {dataset.records[0].id}, nor a number from 0 to {len(dataset) - 1}"
            )
        record = dataset.records[index]
        # Full size, unlike for the network: boxes are in pixels of the original.
        subjects.append(Subject(record.id, dataset.load(index), record.label, record.boxes))
    return subjects


def images_of_split(
    source: DataSource, split: str, model: LocalizationModel | None, wanted: Sequence[str], count: int
) -> list[Subject]:
    """The files and images of the split that are `wanted`, or `count` of the split.

    model: whose classes must be those of the data, if there is one.
    """
    dataset = None
    if not wanted or not all(Path(word).is_file() for word in wanted):
        dataset = source.split(split)
        if model is not None:
            dataset = match_classes(model, dataset)
        # The middles of equal parts, so that they are of different classes where the data are in order.
        parts = min(count, len(dataset))
        wanted = wanted or [str((2 * part + 1) * len(dataset) // (2 * parts)) for part in range(parts)]
    return choose_subjects(dataset, wanted)


@torch.inference_mode()
def compute_maps(
    model: LocalizationModel, subjects: Sequence[Subject], device: torch.device
) -> list[BlockMaps]:
    """Compute the maps of each image, and the box at its own threshold."""
    model = model.to(device).eval()
    preprocessing = Predictor(model, device).preprocessing
    threshold = threshold_to_use(model.config.threshold).threshold
    results = []
    for subject in subjects:
        pixels = preprocessing.prepare(subject.image).unsqueeze(0).to(device)
        localization = model(preprocessing.normalize(pixels))
        score, best = localization.top(1)
        label = int(best) if subject.label is None else subject.label
        semantic, attention = [], [localization.attention]
        if localization.semantic is not None:
            semantic = [localization.semantic]
            if model.calibration is not None:
                trace = model.calibration.trace(localization.semantic, localization.attention)
                semantic += trace.semantic
                attention += trace.attention
        activation = localization.activation_map(torch.tensor([label], device=device))[0]
        located = locate(activation.cpu().numpy(), threshold, subject.image.size)
        results.append(
            BlockMaps(
                subject,
                label,
                int(best),
                float(score),
                [maps[0, label].cpu().numpy() for maps in semantic],
                [maps[0].cpu().numpy() for maps in attention],
                located.scores,
                located.box,
            )
        )
    return results


def maps_figure(results: Sequence[BlockMaps], class_names: Sequence[str]) -> Figure:
    """Two rows per image: image, S^0 ... S^L and the box; what it is, F^0 ... F^L and the map of the box.

    A model without semantic maps has one row: image, what it is, F^0, from which the box is cut, and the box.
    """
    has_semantic = bool(results[0].semantic)
    rows, columns = (2, len(results[0].attention) + 2) if has_semantic else (1, 4)
    sizes = [result.subject.image.size for result in results]
    heights = [PANEL * height / width + TITLE for width, height in sizes for _ in range(rows)]
    figure = Figure(figsize=(PANEL * columns, sum(heights)), layout="constrained")
    grid = figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
    for axes in grid.flat:
        axes.set_axis_off()
    for number, result in enumerate(results):
        image = result.subject.image
        upper, lower = grid[rows * number], grid[rows * number + rows - 1]
        show_image(upper[0], image, None, "image")
        if has_semantic:
            _write(lower[0], result, class_names)
            for block, (semantic, attention) in enumerate(
                zip(result.semantic, result.attention, strict=True)
            ):
                show_image(upper[1 + block], image, semantic, f"$S^{{{block}}}$")
                show_image(lower[1 + block], image, attention, f"$F^{{{block}}}$")
            show_image(lower[-1], image, result.activation, "$F^0 S^0$")
        else:
            _write(upper[1], result, class_names)
            show_image(upper[2], image, result.activation, "$F^0$")
        show_image(upper[-1], image, None, "box")
        outline_boxes(upper[-1], result.subject.boxes, result.box)
    return figure


def outline_boxes(axes: Axes, truth: Sequence[Box], found: Box) -> None:
    """The true boxes in green and the one that was found in red, on axes in pixels of the image."""
    for corners, colour in [*((box, TRUTH) for box in truth), (found, FOUND)]:
        x0, y0, x1, y1 = corners
        outline = Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor=colour, linewidth=1.8)
        axes.add_patch(outline)


def show_image(axes: Axes, image: Image.Image, values: NDArray | None, title: str) -> None:
    """The image, with a map as heat over it, on axes in pixels of the image."""
    width, height = image.size
    small = image.copy()
    small.thumbnail(LARGEST)  # a photograph has many times the pixels of a panel
    picture = np.asarray(small)
    if values is not None:
        picture = blend(picture, resize_map(values, small.size), OPACITY)
    axes.imshow(picture, extent=(0, width, height, 0))
    axes.set_title(title, fontsize="small")


def _write(axes: Axes, result: BlockMaps, class_names: Sequence[str]) -> None:
    lines = [result.subject.name.rsplit("/", 1)[-1], f"found, {result.score:.2f}:", class_names[result.best]]
    if result.subject.label is not None:
        lines += ["true:", class_names[result.label]]
    folded = "\n".join(part for line in lines for part in textwrap.wrap(line, 24))
    axes.text(0, 0.5, folded, fontsize=6, va="center", transform=axes.transAxes)
