"""Data sets in every layout people have, a built-in one, preprocessing and loaders.

dataset = open_dataset("CUB_200_2011", "train")          # or "synthetic", or any other folder
loader = build_train_loader(dataset, published_preprocessing(training=True), global_batch=256)
for batch in loader: ...                                 # batch.images, batch.labels, batch.indices
"""

from .batches import Batch
from .cache import DecodedCache
from .checks import DataProblems
from .dataset import LocalizationDataset
from .images import load_image
from .loading import EvaluationLoader, TrainLoader, build_evaluation_loader, build_train_loader
from .opening import open_dataset
from .preprocessing import Preprocessing, published_preprocessing
from .records import Box, Problem, Record
from .source import DataSource

__all__ = [
    "Batch",
    "Box",
    "DataProblems",
    "DataSource",
    "DecodedCache",
    "EvaluationLoader",
    "LocalizationDataset",
    "Preprocessing",
    "Problem",
    "Record",
    "TrainLoader",
    "build_evaluation_loader",
    "build_train_loader",
    "load_image",
    "open_dataset",
    "published_preprocessing",
]
