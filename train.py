"""Train a vision transformer on image labels so that it also tells where the object is.

    python train.py                                     SCM on the built-in set: minutes on a laptop
    python train.py --method tscam                      the baseline, at the same budget
    python train.py --config configs/cub_deit_small.yaml --data CUB_200_2011
    torchrun --nproc-per-node 8 train.py --config configs/cub_deit_small.yaml --data CUB_200_2011
    python train.py --data my_images --backbone deit_tiny_patch16_224 --epochs 10

A configuration is a YAML file of the fields below; any of them can be given here too, and wins. What is not
given has the value in parentheses; those are the paper's for CUB. Without --config and --data it is
configs/builtin.yaml. The run folder (--out) receives the resolved configuration, logs, checkpoints, the best
models and the evaluation of the test split; scm-fast plot draws it and scm-fast compare puts it beside
others. After a crash or a Ctrl-C, the same command with --resume auto continues where the run was. See
docs/training.md.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path

import torch.distributed as dist

from scm_fast import InputError
from scm_fast.training import Diverged, Interrupted, Trainer, parse_config
from scm_fast.training.processes import start_processes
from scm_fast.training.validation import evaluate_kept_model

BUILTIN = Path(__file__).parent / "configs" / "builtin.yaml"


def main() -> None:
    config = parse_config(sys.argv[1:], BUILTIN, __doc__)
    device = start_processes(config.device)
    trainer = Trainer(config, device)
    trainer.fit()
    evaluate_kept_model(config, trainer.folder.path / trainer.kept_model(), device, trainer.amp)
    if dist.is_initialized():
        dist.destroy_process_group()


def report(error: Exception, status: int) -> int:
    """Print the message alone. What stops all processes is said by the first; torchrun then ends the others."""
    if os.environ.get("RANK", "0") != "0":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(2)
    print(f"train.py: {error}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    first = os.environ.get("RANK", "0") == "0"
    logging.basicConfig(format="%(message)s", level=logging.WARNING if first else logging.ERROR)
    try:
        main()
    except (InputError, FileNotFoundError, PermissionError) as error:
        sys.exit(report(error, 2))
    except Diverged as error:
        sys.exit(report(error, 1))
    except Interrupted as error:
        sys.exit(report(error, 128 + error.number))
