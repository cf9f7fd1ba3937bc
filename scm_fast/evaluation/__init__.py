"""Boxes from activation maps, metrics of weakly supervised localisation, and reports on them.

evaluator = Evaluator(step=0.001)
for ...:
    evaluator.accumulate(index, label, top_class, top_score, maps, boxes, image_size)
result = protocols.maxbox(evaluator.compute())
"""

from . import protocols
from .evaluation import Evaluation
from .evaluator import Evaluator
from .pixels import read_masks
from .protocols import Result

__all__ = ["Evaluation", "Evaluator", "Result", "protocols", "read_masks"]
