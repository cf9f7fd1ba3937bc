"""Count what the literal module, `scm_fast.reference`, computes and moves in a training step.

Two counts. `products` has only the matrix products, in closed form, each reading its operands and writing its
result once: the least that any implementation with dense chains moves if it fuses everything else into them.
`as_written` is every operation that torch carries out, forward and in autograd's backward pass, counted while
the reference runs on tensors without data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from kernel_launches import Step
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from scm_fast import reference


@dataclass(frozen=True)
class Operation:
    """One launch: floating-point operations, bytes read and written, and stencils that wait for each other."""

    flops: int
    bytes: int
    stencils: int = 0


def products(step: Step, element_size: int = 4) -> tuple[list[Operation], list[Operation]]:
    """The matrix products of the forward and of the backward pass, with elements of so many bytes."""
    B, C, N = step.batch, step.classes, step.grid[0] * step.grid[1]

    def product(rows: int, inner: int, columns: int, elements: int) -> Operation:
        return Operation(2 * B * rows * inner * columns, B * elements * element_size)

    square = product(N, N, N, 3 * N * N)
    forward, backward = [], []
    for count in step.iterations:
        forward.append(product(N, C, N, C * N + N * N))  # E = u^T u
        forward += [square] * (2 * count)  # L X and X (2I - L X)
        forward.append(product(N, N, 1, N * N + 2 * N))  # X F
        backward += [product(N, 1, N, N * N + 2 * N), product(N, N, 1, N * N + 2 * N)]  # dX, dF
        # Each product has a gradient for both factors; those for a constant X_0 are not computed.
        backward += [square] * (4 * count - (2 if step.detach_init else 0))
        backward += [product(C, N, N, 2 * C * N + N * N)] * 2  # du, once for each side of u^T u
    return forward, backward


class _Counter(TorchDispatchMode):
    """Every operation that is a launch on a GPU: views and uninitialised memory are none."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        outputs, inputs = list(_tensors(result)), list(_tensors((args, kwargs)))
        owned = {_storage(tensor) for tensor in inputs}
        is_alias = not func._schema.is_mutable and any(_storage(tensor) in owned for tensor in outputs)
        if func.is_view or is_alias or not outputs or func.overloadpacket.__name__.startswith("empty"):
            return result
        count = flop_registry.get(func.overloadpacket)
        flops = count(*args, **(kwargs or {}), out_val=result) if count else 0
        self.operations.append(Operation(flops, _distinct_bytes(inputs) + sum(map(_bytes, outputs))))
        return result


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (value for value in tree_leaves(values) if isinstance(value, torch.Tensor))


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _bytes(tensor: torch.Tensor) -> int:
    """Distinct bytes: an expanded dimension repeats the same elements."""
    count = tensor.element_size()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else min(size, 1)
    return count


def _distinct_bytes(tensors: list[torch.Tensor]) -> int:
    """Return the bytes of several tensors, some of which may be views of one memory."""
    views: dict[int, dict[tuple[Any, ...], int]] = {}
    sizes: dict[int, int] = {}
    for tensor in tensors:
        view = (tensor.storage_offset(), tensor.shape, tensor.stride())
        views.setdefault(_storage(tensor), {})[view] = _bytes(tensor)
        sizes[_storage(tensor)] = tensor.untyped_storage().nbytes()
    return sum(min(sizes[key], sum(found.values())) for key, found in views.items())


def as_written(step: Step) -> tuple[list[Operation], list[Operation], int]:
    """The operations of the forward and of the backward pass, and the bytes that autograd stores between."""
    with FakeTensorMode():
        S = torch.empty(step.batch, step.classes, *step.grid, dtype=step.dtype, requires_grad=True)
        F = torch.empty(step.batch, *step.grid, requires_grad=True)
        lam, beta = (torch.ones(len(step.iterations), requires_grad=True) for _ in range(2))
        stored: dict[int, torch.UntypedStorage] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            stored[_storage(tensor)] = tensor.untyped_storage()
            return tensor

        with _Counter() as forward, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            logits = reference.spatial_calibration(S, F, lam, beta, step.iterations, 0.002, step.detach_init)[
                0
            ]
        dlogits = torch.empty_like(logits)
        with _Counter() as backward:
            torch.autograd.grad(logits, (S, F, lam, beta), dlogits)
        inputs = {_storage(tensor) for tensor in (S, F, lam, beta)}
        kept = sum(storage.nbytes() for key, storage in stored.items() if key not in inputs)
    return forward.operations, backward.operations, kept
