"""Data sets in every layout people have, a built-in one, transforms and loaders.

dataset = open_dataset("CUB_200_2011", "train")          # or "synthetic", or any other folder
loader = build_train_loader(dataset, published_recipe(training=True), global_batch=256)
for batch in loader: ...                                 # batch.images, batch.labels, batch.indices
"""

from .dataset import LocalizationDataset
from .images import load_image
from .opening import open_dataset
from .records import Box, Problem, Record
from .validation import DataProblems

__all__ = ["Box", "DataProblems", "LocalizationDataset", "Problem", "Record", "load_image", "open_dataset"]
