"""The `scm-fast` command: each subcommand is a module of this package.

A subcommand module has `add_arguments(parser)` and `execute(args) -> int` (the exit status); its docstring is
what `scm-fast COMMAND --help` says. It is imported only when it is asked for, so that `scm-fast --help`
answers at once.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence

from .program import Parser, guarded

# name -> one line for `scm-fast --help`, in the order of use; the code is in the module of that name (_ for -).
COMMANDS: dict[str, str] = {
    "demo": "TS-CAM and SCM on the built-in set, side by side: minutes, nothing to download",
    "check-data": "look through a data folder and list everything that is wrong with it",
    "train": "train a network on image labels, and evaluate it",
    "evaluate": "how well a trained network classifies and localises, by a named protocol",
    "compare": "put runs side by side: figures, baselines and what differs",
    "plot": "draw the curves of a run, and the maps of every calibration block",
    "predict": "classes and boxes of your images, with a trained network",
    "export": "write a trained network as one .pt2 or .onnx file",
    "bench": "measure against the reference, draw the results, or compare two of them",
    "info": "versions, devices, the backend of every op and why; for bug reports",
}

HELP = """\
usage: scm-fast COMMAND [options]

Train a vision transformer on image labels alone, and it also tells where the object is.

First, without any data or download (minutes on a laptop):
  scm-fast demo                                      the built-in set: a comparison, a picture, a report

Then with your own images, a folder per class:
  scm-fast check-data my_images                      what is there, and what is wrong with it
  scm-fast train --config custom_folder --data my_images --out runs/mine
  scm-fast predict photos/ --checkpoint runs/mine/last --out found --overlay

commands (scm-fast COMMAND --help explains each, with examples):
{commands}

exit status: 0 all well; 1 it ran, and found problems that it lists; 2 wrong arguments or input, the message
says which; 130 stopped by Ctrl-C
"""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else list(argv)
    command = arguments[0] if arguments else "--help"
    if command in ("-h", "--help", "help"):
        return guarded("scm-fast", lambda: print(help_text(), end=""))
    if command == "--version":
        from .. import __version__

        return guarded("scm-fast", lambda: print(f"scm-fast {__version__}"))
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(COMMANDS)}"
        print(f"scm-fast: error: no command {command!r}; {hint} (scm-fast --help)", file=sys.stderr)
        return 2
    return execute_command(command, arguments[1:], f"scm-fast {command}")


def execute_command(command: str, arguments: Sequence[str], program: str) -> int:
    """Carry out a subcommand; `program` is the name by which help and errors call it. Gives the exit status."""

    def action() -> int:
        module = importlib.import_module(f"{__name__}.{command.replace('-', '_')}")
        parser = Parser(program, module.__doc__)
        module.add_arguments(parser)
        return module.execute(parser.parse_args(arguments))

    return guarded(program, action)


def help_text() -> str:
    width = max(map(len, COMMANDS))
    return HELP.format(
        commands="\n".join(f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items())
    )
