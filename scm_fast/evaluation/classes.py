"""Compare the classes of a model with those of the data, and their order."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from .. import distributed
from ..data import LocalizationDataset
from ..errors import InputError
from ..models import LocalizationModel

logger = logging.getLogger("scm_fast")
SHOWN = 5  # names in a sentence


def match_classes(model: LocalizationModel, dataset: LocalizationDataset) -> LocalizationDataset:
    """Return the data set with its labels in the order of the model's classes, matched by name.

    Classes go by their places where either side has no names but numbers, as wsolevaluation's. Raises an
    InputError that names the difference where the two are about other classes.
    """
    own, theirs = model.config.class_names, dataset.class_names
    unnamed = own is None or _are_numbers(own) or _are_numbers(theirs)
    difference = "" if unnamed else _difference(own or (), theirs)
    if model.config.num_classes != dataset.num_classes:
        counts = (
            f"the checkpoint has {model.config.num_classes} classes, {dataset.root} has {dataset.num_classes}"
        )
        raise InputError(f"{counts}{difference and f': {difference}'}")
    if unnamed or own is None or list(own) == theirs:
        return dataset
    if difference:
        raise InputError(f"the checkpoint and {dataset.root} have other classes: {difference}")
    if len(set(own)) < len(own):
        raise InputError(
            f"{dataset.root} has the classes of the checkpoint in another order, and some names are there twice"
        )
    if distributed.is_first():
        logger.warning(
            "%s, split %s: the classes are in another order than the checkpoint's, and are matched by name",
            dataset.root,
            dataset.split,
        )
    return dataset.with_classes(own)


def _are_numbers(names: Sequence[str]) -> bool:
    return all(name.isdecimal() for name in names)


def _difference(own: Sequence[str], theirs: Sequence[str]) -> str:
    """Describe what only one side has; empty if there is no such class."""
    parts = []
    for who, names, others in (("the checkpoint", own, theirs), ("the data", theirs, own)):
        only = [name for name in names if name not in set(others)]
        if only:
            more = f" and {len(only) - SHOWN} more" if len(only) > SHOWN else ""
            parts.append(f"only {who} has {', '.join(only[:SHOWN])}{more}")
    return "; ".join(parts)
