"""Train TS-CAM and SCM on the built-in set and compare them: minutes on two cores, nothing to download.

  scm-fast demo
  scm-fast demo --out runs/mine --device cpu

The set is drawn: creatures among other bodies, no photos. A small transformer first learns other classes, as
published weights did. Then TS-CAM and SCM start from it with the same budget, on image labels alone. You get
a table beside a centred box, a picture, and one report, in the folder OUT. It is safe to interrupt: run it
again to resume. Once finished, it prints the saved results. For your own images: scm-fast train --help
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from .program import Parser, Stop


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--out", type=Path, help="folder for everything (runs/demo; with --quick runs/quick-demo)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="run every step in a minute, with a network too small to localise well",
    )
    parser.add_argument("--device", help="e.g. cuda, cuda:1, cpu (default: cuda if there is one)")


def execute(args: argparse.Namespace) -> int:
    out = args.out or Path("runs/quick-demo" if args.quick else "runs/demo")
    print("0/6  starting", flush=True)
    from ..demo import run_demo
    from ..devices import use_device
    from ..evaluation.extraction import kept_workers
    from ..training.stopping import Diverged, Interrupted

    try:
        with kept_workers():  # before CUDA has started
            print(run_demo(out, use_device(args.device), args.quick, lambda line: print(line, flush=True)))
    except Diverged as error:
        raise Stop(str(error), 1) from None
    except Interrupted as error:
        raise Stop("stopped; the same command goes on where it was", 128 + error.number) from None
    except KeyboardInterrupt:
        raise Stop("stopped; the same command goes on where it was", 128 + signal.SIGINT) from None
    return 0
