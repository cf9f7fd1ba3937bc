"""Read a configuration: from YAML files, built-in ones among them, and the command line.

Options that are text are taken literally: `data: 007` and `--out 2024_11_16` are names.
"""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from .. import safe_yaml
from ..errors import InputError
from .config import CHOICES, OPTIONS, TrainConfig, check_kinds, make_config

if TYPE_CHECKING:
    from ..cli.program import Parser

RECIPES = Path(str(resources.files("scm_fast.configs")))
WIDEST = 60  # characters of choices beside an option's name
BUILTIN = "builtin"  # the recipe of the built-in set
# The parts of the configuration, by their first option.
PARTS = {
    "data": "data",
    "backbone": "model",
    "epochs": "optimisation",
    "device": "machine",
    "validate_every": "evaluation",
    "out": "run folder",
}


def _text_options() -> dict[str, tuple[type, ...]]:
    """Options whose value is text, and what else each may be: a bool, None."""
    found = {}
    for name, hint in typing.get_type_hints(TrainConfig).items():
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        if str in kinds:
            found[name] = tuple(kind for kind in kinds if kind is not str)
    return found


TEXT_OPTIONS = _text_options()


def recipe_names() -> list[str]:
    """Recipes that come with the package: the files of `configs/`."""
    return sorted(file.stem for file in RECIPES.glob("*.yaml"))


def read_recipe(name: str) -> dict[str, Any]:
    """The options of a YAML file, or of a built-in recipe by its name."""
    if name in recipe_names():
        return read_yaml(RECIPES / f"{name}.yaml")
    if not Path(name).exists():
        raise InputError(
            f"--config {name}: no such file, and no recipe of that name ({', '.join(recipe_names())})"
        )
    return read_yaml(Path(name))


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = safe_yaml.load(path.read_text(), _take_text_literally)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a YAML file ({error})") from error
    if values is not None and not isinstance(values, dict):
        raise InputError(f"{path}: expected lines of `option: value`")
    return values or {}


def _take_text_literally(root: yaml.Node) -> None:
    """Keep a number, a date or `no` as it was written where the option is text."""
    for key, value in root.value if isinstance(root, yaml.MappingNode) else ():
        if not (isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode)):
            continue
        if key.value in TEXT_OPTIONS:
            kept = {type(None): "null", bool: "bool", float: "float"}
            tags = [f"tag:yaml.org,2002:{kept[kind]}" for kind in TEXT_OPTIONS[key.value]]
            if value.tag not in tags:
                value.tag = "tag:yaml.org,2002:str"


def add_options(parser: Parser) -> None:
    """`--config`, and an option for every one of `TrainConfig`; what they may be is found out for --help alone."""
    parser.add_argument(
        "--config", help=f"YAML file, or one of {', '.join(recipe_names())}; the other options override it"
    )
    actions = {}
    for name, f in OPTIONS.items():
        if name in PARTS:
            part = parser.add_argument_group(PARTS[name])
        flag = {"nargs": "?", "const": "true"} if isinstance(f.default, bool) else {}
        actions[name] = part.add_argument(
            f"--{name.replace('_', '-')}",
            default=argparse.SUPPRESS,
            metavar="VALUE",
            **flag,  # type: ignore[arg-type]
        )
    parser.before_help = lambda: _explain(actions)


def _explain(actions: dict[str, argparse.Action]) -> None:
    """Give options their help, and names to the values that they may have."""
    for name, action in actions.items():
        f = OPTIONS[name]
        choices = "|".join(CHOICES[name]()) if name in CHOICES else ""
        fits = len(choices) < WIDEST
        sentence = f.metadata["help"]() if callable(f.metadata["help"]) else f.metadata["help"]
        explained = sentence if fits else f"{sentence}: {choices.replace('|', ', ')}"
        default = {} if f.default is dataclasses.MISSING else f.default
        shown = default if isinstance(default, str) else yaml.safe_dump(default, default_flow_style=True)
        action.metavar = choices if choices and fits else "VALUE"
        action.help = f"{explained} ({shown.splitlines()[0]})".replace("%", "%%")


def config_from_options(options: argparse.Namespace) -> TrainConfig:
    """The configuration of a command line; without --config and --data it is the built-in set's recipe."""
    given = dict(vars(options))
    recipe = given.pop("config")
    if recipe is None and "data" not in given:
        recipe = BUILTIN
    values = read_recipe(recipe) if recipe else {}
    given = {name: _value(name, text) for name, text in given.items()}
    check_kinds(given, "command line")
    own = make_config(values, str(recipe))  # first, so that an error names the file
    if given.get("method", own.method) != own.method:
        values.pop("method_options", None)  # they are of the recipe's method
        if not make_config({"method": given["method"]}, "command line").calibrates:
            values.pop("calibration", None)
    return make_config(values | given, "command line")


def _value(name: str, text: str) -> Any:
    """Return the value of a command-line option: text as it is, anything else read as YAML."""
    try:
        value = safe_yaml.load(text)
    except yaml.YAMLError as error:
        if name in TEXT_OPTIONS:
            return text
        raise InputError(f"command line: --{name.replace('_', '-')} {text!r} is no YAML value") from error
    if name in TEXT_OPTIONS and not isinstance(value, TEXT_OPTIONS[name]):
        return text
    return value
