"""Boxes from activation maps, metrics of weakly supervised localisation, and reports on them.

done = evaluate(Predictor(model, device), DataSource("CUB_200_2011"), EvaluationSettings("maxbox"))
print(done.result.metrics["gt_known"])
write_results(Path("results"), done)

`Evaluator` alone takes maps from anywhere.
"""

from . import protocols
from .evaluator import Evaluator
from .metrics import SplitMetrics
from .pipeline import EvaluationSettings, evaluate
from .pixels import read_masks
from .predictor import Predictor, Strategy
from .protocols import Result
from .results import SplitResult, summary, write_results

__all__ = [
    "EvaluationSettings",
    "Evaluator",
    "Predictor",
    "Result",
    "SplitMetrics",
    "SplitResult",
    "Strategy",
    "evaluate",
    "protocols",
    "read_masks",
    "summary",
    "write_results",
]
