"""Values on the null GPU: each ATen operation is launched there, and computed on the CPU over the same bytes.

Not modelled are this package's kernels (their torch backend computes for them; tests/ptx emulates the kernels) and
fused attention, which has no counterpart on the CPU (plain operations stand for it).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from . import device  # noqa: F401  (settings without which the null GPU does not start)

# Nothing is computed by them, or only where the tensors are.
_NO_VALUES = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "record_stream"}
_NO_VALUES |= {"is_pinned", "_pin_memory", "set_", "resize_"}
_OF_PROCESSES = ("c10d", "_c10d_functional")
_WITHOUT_A_LAUNCH = {"_linalg_eigh"}  # cuSOLVER has no stand-in

# Fused attention of CUDA is an operation of its own.
torch.backends.cuda.enable_flash_sdp(False)
torch.backends.cuda.enable_mem_efficient_sdp(False)


def _on_host(tensor: Tensor) -> Tensor:
    """The bytes of a tensor of the null GPU as a tensor of the CPU."""
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    content = (ctypes.c_byte * storage.nbytes()).from_address(storage.data_ptr())
    content = torch.frombuffer(content, dtype=torch.uint8).untyped_storage()
    found = torch.empty(0, dtype=tensor.dtype)
    return found.set_(content, tensor.storage_offset(), tensor.size(), tensor.stride())


def _host_argument(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _on_host(value) if value.is_cuda else value
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, torch.Generator):
        return None  # the one of the CPU
    return value


def _tensors(values: Any) -> Iterator[Tensor]:
    return (value for value in tree_flatten(values)[0] if isinstance(value, Tensor))


class Values(TorchDispatchMode):
    """A context in which tensors of the null GPU have the values that the CPU computes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if func.namespace in _OF_PROCESSES or name in _NO_VALUES:
            return func(*args, **kwargs)
        host_args, host_kwargs = tree_map(_host_argument, (args, kwargs))
        if func.namespace == "scm_fast":
            host_args = tuple("torch" if value == "triton" else value for value in host_args)
        unknown = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(func.tags)
        if unknown or name in _WITHOUT_A_LAUNCH:
            return self._computed_first(func, (args, kwargs), host_args, host_kwargs)
        result = func(*args, **kwargs)
        if not any(tensor.is_cuda for tensor in _tensors((args, kwargs, result))):
            return result
        inputs = {tensor.untyped_storage().data_ptr() for tensor in _tensors((host_args, host_kwargs))}
        computed = func(*host_args, **host_kwargs)
        for ours, theirs in zip(_tensors(result), _tensors(computed), strict=True):
            if (
                theirs.numel() and theirs.untyped_storage().data_ptr() not in inputs
            ):  # else a view, or in place
                (_on_host(ours) if ours.is_cuda else ours).copy_(theirs)
        return result

    def _computed_first(self, func: Any, given: Any, host_args: Any, host_kwargs: Any) -> Any:
        """The GPU would tell the host something of the result; that waits for the stream."""
        computed = func(*host_args, **host_kwargs)
        found = next((tensor.device for tensor in _tensors(given) if tensor.is_cuda), None)
        if found is None:
            return computed
        torch.cuda.current_stream().synchronize()
        return tree_map(lambda x: x.to(found) if isinstance(x, Tensor) else x, computed)
