"""YAML from anywhere: no objects, no depth that ends the interpreter, no aliases that fill the memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml

MOST_VALUES = 10_000  # of a document, with each alias as what it stands for


def load(text: str, prepare: Callable[[yaml.Node], None] = lambda root: None) -> Any:
    """Load as `yaml.safe_load` does; raises a YAMLError also for what is too deep or too large.

    prepare: may change the nodes before they become values.
    """
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                return None
            _check_size(root)
            prepare(root)
            return loader.construct_document(root)
        finally:
            loader.dispose()
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None


def _check_size(root: yaml.Node) -> None:
    sizes: dict[int, int] = {}  # of nodes; 0 while it is counted

    def size(node: yaml.Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = 0
            parts = [node.value] if isinstance(node, yaml.ScalarNode) else node.value
            inside = [part for item in parts for part in (item if isinstance(item, tuple) else (item,))]
            sizes[id(node)] = 1 + sum(size(part) for part in inside if isinstance(part, yaml.Node))
        elif not sizes[id(node)]:
            raise yaml.YAMLError("a value contains itself")
        return sizes[id(node)]

    if size(root) > MOST_VALUES:
        raise yaml.YAMLError(f"its aliases stand for more than {MOST_VALUES} values")
