"""Bytes that a kernel launch moves and operations that it computes, counted from its arguments.

Bytes are distinct: an element that several programs or several loads of one program touch counts once, as on a
device whose caches hold a neighbour's vector or a field until it is used again. Less cannot be moved. The
scratch memory of the activation_diffusion kernels is apart: a program writes its slots and reads them back many
times, which stays in the cache; what remains to be moved is that it is written once.

Operations are additions, multiplications and divisions on tokens and edges, lanes beyond the grid excluded.
ACCESS and OPERATIONS state what the kernels do; `tests/test_kernel_traffic.py` holds them against every address and
every operation of the interpreter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernel_launches import Launch
from torch import Tensor

from scm_fast.kernels.fields import FILTERED, FORWARD_SLOTS

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Traffic:
    read: int
    written: int
    scratch: int

    @property
    def total(self) -> int:
        return self.read + self.written + self.scratch

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.read + other.read, self.written + other.written, self.scratch + other.scratch)


NOTHING = Traffic(0, 0, 0)


@dataclass(frozen=True)
class Access:
    """Names of the arguments that a kernel reads and writes; `partly` gives the elements where not all are."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    partly: Mapping[str, Callable[[Arguments], int]]

    @classmethod
    def of(cls, reads: str, writes: str, **partly: Callable[[Arguments], int]) -> Access:
        return cls(tuple(reads.split()), tuple(writes.split()), partly)


def _edges(arguments: Arguments) -> int:
    """Edges of an image's grid."""
    H, W = arguments["H"], arguments["W"]
    return H * (W - 1) + (H - 1) * W


def _images(arguments: Arguments) -> int:
    return arguments["edges"].shape[0]


def _existing_edges(arguments: Arguments) -> int:
    """Elements of (B, 2, H, W) that are an edge; the last column and row are none."""
    return _images(arguments) * _edges(arguments)


def _five_diagonals(arguments: Arguments) -> int:
    """Elements of (B, N, N) on the diagonal and on edges."""
    return _images(arguments) * (arguments["H"] * arguments["W"] + 2 * _edges(arguments))


def _forward_scratch(arguments: Arguments) -> int:
    """The slots in use: those of the matrix and of exchange, the first 7, only where registers do not hold them."""
    slots = FORWARD_SLOTS - (7 if arguments["RESIDENT"] else 0)
    return _images(arguments) * slots * arguments["BLOCK"]


def _backward_scratch(arguments: Arguments) -> int:
    """Count as in the forward pass; resident are also dout and the three sums of entries."""
    kept = 1 if arguments["DETACH_INIT"] else 2
    slots = FILTERED.value + arguments["NUM_BLOCKS"] + kept * (max(_terms(arguments)) - 1)
    return _images(arguments) * (slots - (11 if arguments["RESIDENT"] else 0)) * arguments["BLOCK"]


ACCESS = {
    "edge_similarity_forward": Access.of("S", "edges inverse_norm"),
    "edge_similarity_backward": Access.of(
        "S edges inverse_norm dedges weight dpooled dparameters",
        "dS dlam dbeta",
        edges=_existing_edges,
        dedges=_existing_edges,
    ),
    "matrix_vector": Access.of("S x", "out"),
    "activation_diffusion_forward": Access.of(
        "F edges lam beta", "attention gain f", scratch=_forward_scratch
    ),
    "activation_diffusion_backward": Access.of(
        "F edges lam beta f dattention dgain", "dF dedges dparameters", scratch=_backward_scratch
    ),
    "laplacian_forward": Access.of("edges lam", "L", edges=_existing_edges, L=_five_diagonals),
    "laplacian_backward": Access.of("dL edges lam", "dedges dlam", edges=_existing_edges, dL=_five_diagonals),
    "product": Access.of("A B add x y v", "out v_out"),
    "complement_vector": Access.of("P v", "v_out"),
    "cls_row_forward": Access.of("q k", "row rows", q=lambda a: a["q"][:, :, 0].numel()),
    "cls_row_backward": Access.of(
        "drow rows q k dq dk", "dq_sum dk_sum", q=lambda a: a["q"][:, :, 0].numel()
    ),
}


def _elements(tensor: Tensor) -> int:
    """Distinct elements in memory: an expanded dimension repeats the same."""
    return math.prod(
        size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or size == 0
    )


def _bytes(launch: Launch, names: tuple[str, ...], access: Access) -> int:
    found: dict[int, int] = {}  # by address: P P reads P once
    for name in names:
        tensor = launch.arguments.get(name)
        if tensor is None:
            continue
        count = access.partly[name](launch.arguments) if name in access.partly else _elements(tensor)
        size = count * tensor.element_size()
        found[tensor.data_ptr()] = max(size, found.get(tensor.data_ptr(), 0))
    return sum(found.values())


def traffic(launch: Launch) -> Traffic:
    """Distinct bytes that the launch reads, writes, and uses as scratch memory."""
    access = ACCESS[launch.name]
    sizes = (_bytes(launch, names, access) for names in (access.reads, access.writes, ("scratch",)))
    return Traffic(*sizes)


def _terms(arguments: Arguments) -> list[int]:
    """K = 2^p of every block."""
    packed = arguments["packed_iterations"]
    return [1 << (packed >> (4 * block) & 15) for block in range(arguments["NUM_BLOCKS"])]


def _apply(arguments: Arguments) -> int:
    """Operations of M x: a product for every entry of M, and their sum."""
    tokens, edges = arguments["H"] * arguments["W"], _edges(arguments)
    return tokens + 2 * 2 * edges


def stencils(launch: Launch) -> int:
    """Count the products M x that an image waits for in turn; 0 but for activation_diffusion."""
    if launch.name == "activation_diffusion_forward":
        return sum(2 * K - 1 for K in _terms(launch.arguments))
    if launch.name == "activation_diffusion_backward":
        return sum(2 * K - 1 + 2 * (K - 1) + 1 for K in _terms(launch.arguments))
    return 0


def _edge_similarity_forward(a: Arguments) -> int:
    tokens, edges = a["H"] * a["W"], _edges(a)
    return a["C"] * (2 * tokens + 4 * edges) + a["BLOCK_C"] * (tokens + 2 * edges)


def _edge_similarity_backward(a: Arguments) -> int:
    pooling = 2 if a["weight"] is not None else 0
    return a["C"] * ((2 + pooling) * a["H"] * a["W"] + 2 * 2 * _edges(a))


def _activation_diffusion_forward(a: Arguments) -> int:
    recurrence = sum((2 * K - 1) * _apply(a) + 2 * (K - 1) * a["H"] * a["W"] for K in _terms(a))
    return recurrence + a["NUM_BLOCKS"] * _filter(a)


def _activation_diffusion_backward(a: Arguments) -> int:
    tokens, edges = a["H"] * a["W"], _edges(a)
    entries = 2 * tokens + 4 * edges  # gradient of M from one product
    products = 1 if a["DETACH_INIT"] else 2
    again = _activation_diffusion_forward(a)
    back = sum(
        (K - 1) * (2 * _apply(a) + products * entries + 2 * tokens) + _apply(a) + (products - 1) * entries
        for K in _terms(a)
    )
    return again + back + a["NUM_BLOCKS"] * _filter(a)


def _filter(a: Arguments) -> int:
    """Estimate what a block takes beside its recurrence: the matrix, the continued fraction, min-max, updates."""
    return (3 * a["LEVELS"] + 30) * a["H"] * a["W"]


def _product(a: Arguments) -> int:
    sides = 2 if a["TWO_SIDED"] else 1
    tiles = math.ceil(a["N"] / a["BLOCK"])
    share = (tiles + 1) / (2 * tiles) if a["SYMMETRIC"] else 1.0
    return round(sides * share * 2 * a["N"] ** 3)


# Operations per image; the few per token that do not depend on the channels are left out where S is read.
OPERATIONS: dict[str, Callable[[Arguments], int]] = {
    "edge_similarity_forward": _edge_similarity_forward,
    "edge_similarity_backward": _edge_similarity_backward,
    "matrix_vector": lambda a: a["rows"] * (2 * a["columns"] + a["BLOCK_K"]),
    "activation_diffusion_forward": _activation_diffusion_forward,
    "activation_diffusion_backward": _activation_diffusion_backward,
    "laplacian_forward": lambda a: 3 * _edges(a),
    "laplacian_backward": lambda a: 6 * _edges(a),
    "product": _product,
    "complement_vector": lambda a: 2 * a["N"] ** 2,
    "cls_row_forward": lambda a: a["heads"] * a["N"] * (2 * a["d"] + 4),
    "cls_row_backward": lambda a: a["heads"] * a["N"] * (5 * a["d"] + 5),
}


def operations(launch: Launch) -> int:
    """Floating-point operations of the launch."""
    first = next(value for value in launch.arguments.values() if isinstance(value, Tensor))
    return first.shape[0] * OPERATIONS[launch.name](launch.arguments)
