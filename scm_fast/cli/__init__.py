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
    "demo": "compare TS-CAM and SCM on drawn pictures: minutes, nothing to download",
    "check-data": "list everything that is wrong with a data folder",
    "train": "train a network on image labels, and evaluate it",
    "evaluate": "measure how well a network classifies and localises, by a named protocol",
    "compare": "put runs side by side: figures, baselines and what differs",
    "plot": "draw the curves of a run, and the maps of every calibration block",
    "predict": "find classes and boxes in your images",
    "export": "write a trained network as one .pt2 or .onnx file",
    "bench": "measure against the reference, draw the results, or compare two of them",
    "info": "show versions, devices and backends, for bug reports",
}

HELP = """\
usage: scm-fast COMMAND [options]

Train a vision transformer on image labels alone; it then shows where the object is.

Boxes in your own photos, without training:
  scm-fast predict photos/ --model deit_tiny_patch16_224 --out found --overlay

Your own classes, a folder for each:
  scm-fast check-data my_images
  scm-fast train --config custom_folder --data my_images --out runs/mine
  scm-fast predict photos/ --checkpoint runs/mine/last --out found --overlay

commands (scm-fast COMMAND --help explains each, with examples):
{commands}

exit status: 0 success; 1 the command ran and lists problems; 2 wrong arguments or input, named in the message;
130 stopped by Ctrl-C
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
    """Run a subcommand and return its exit status; help and errors call it `program`."""

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
