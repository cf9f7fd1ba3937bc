"""Train a vision transformer on image labels; it then also shows where the object is.

  scm-fast train                                      SCM on the built-in set: minutes on a laptop
  scm-fast train --method tscam                       the baseline, at the same budget
  scm-fast train --config custom_folder --data my_images --out runs/mine
  scm-fast train --config cub_deit_small --data CUB_200_2011
  torchrun --nproc-per-node 8 -m scm_fast.cli train --config cub_deit_small --data CUB_200_2011

In a checkout, `python train.py` and `torchrun train.py` do the same. A configuration is a YAML file of the
options below, or the name of a built-in recipe. Options on the command line win. Defaults are in parentheses;
they are the paper's for CUB. Without --config and --data, the recipe is builtin.

The run folder (--out) receives the configuration, logs, checkpoints, the best models and the evaluation of
the test split. scm-fast plot draws it, scm-fast compare puts it beside others. After a crash or a Ctrl-C, add
--resume auto to the same command. One class alone cannot be learned: the untrained network's attention is
kept then, with a notice. See docs/training.md.
"""

from __future__ import annotations

import argparse

from ..errors import LostProcess
from ..training.config import TrainConfig
from ..training.recipes import add_options, config_from_options
from .program import Parser, Stop


def add_arguments(parser: Parser) -> None:
    parser.usage = f"{parser.prog} [--config CONFIG] [--OPTION VALUE ...]"
    add_options(parser)


def execute(args: argparse.Namespace) -> int:
    config = config_from_options(args)  # what is wrong with it is said before torch is imported
    from ..training.stopping import Diverged, Interrupted

    try:
        train(config)
    except Diverged as error:
        raise Stop(str(error), 1) from None
    except Interrupted as error:
        raise Stop(str(error), 128 + error.number) from None
    except LostProcess as error:
        raise LostProcess(f"{error}; --resume auto continues after the last checkpoint") from None
    return 0


def train(config: TrainConfig) -> None:
    """A whole run: training, and the evaluation of the model that it kept."""
    from ..distributed import is_first, processes
    from ..evaluation.extraction import kept_workers
    from ..training.machine import machine_line
    from ..training.one_class import keep_untrained
    from ..training.pretraining import pretrain
    from ..training.run_folder import RunFolder
    from ..training.trainer import Trainer
    from ..training.validation import evaluate_kept_model

    assert config.out is not None
    source = config.source()
    with (
        kept_workers(),  # before CUDA has started
        processes(config.device, config.partner_timeout) as device,
        RunFolder(config.out).locked(),
    ):
        if is_first():
            print(machine_line(config, device), flush=True)
        if source.split(config.train_split).num_classes == 1:
            return keep_untrained(config, device, source)
        config = config.for_images(len(source.split(config.train_split)))
        trainer = Trainer(config, device, source, start_from=pretrain(config, device, source))
        trainer.fit()
        kept = trainer.folder.path / trainer.kept_model()
        evaluate_kept_model(config, source, kept, device, trainer.amp, trainer.kept_validation)
