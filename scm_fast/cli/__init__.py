"""The `scm-fast` command: each subcommand is a module of this package.

A subcommand module has `add_arguments(parser)` and `run(args) -> int` (the exit status). It is imported
only when it is asked for, so that `scm-fast --help` answers at once.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from ..errors import InputError

# name -> one line for `scm-fast --help`; the code is in the module of that name (with _ for -).
COMMANDS: dict[str, str] = {
    "bench": "measure against the reference, draw the results, or compare two of them",
    "check-data": "look through a data folder and list everything that is wrong with it",
    "export": "write a trained network as one .pt2 or .onnx file",
    "predict": "classes and boxes of your images, with a trained checkpoint",
}


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser with the arguments of `command`; the other subcommands are listed with their help line."""
    parser = argparse.ArgumentParser(
        prog="scm-fast",
        description="Weakly supervised object localisation with the Spatial Calibration Module.",
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary)
        if name == command:
            module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
            subparser.description = module.__doc__
            subparser.formatter_class = argparse.RawDescriptionHelpFormatter
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else list(argv)
    args = build_parser(argv[0] if argv else None).parse_args(argv)
    try:
        return args.run(args)
    except (InputError, FileNotFoundError, PermissionError) as error:
        print(f"scm-fast {args.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
