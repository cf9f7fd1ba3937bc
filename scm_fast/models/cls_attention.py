"""The CLS token's attention to every token, computed beside the fused attention.

    row = mean_heads softmax(q_cls k^T * scale + mask_cls)          (B, N)

The fused attention stays as it is and the N x N matrix is never formed: one row per head costs about 1/N of the
matrix. The attention modules of timm are covered by subclasses that differ from them in this alone, so
`torch.compile` traces them without a graph break. `cover_attention` turns a module into its subclass in
place, with the same parameters under the same names.

A row leaves its module through a recording that the thread has open:

    with record_cls_rows() as rows:
        tokens = backbone.forward_features(images)
    attention = torch.stack(rows).mean(0)

Whether a module computes its row depends on the module alone and not on an open recording: when activation
checkpointing runs a block again in the backward pass, it must do exactly what it did in the forward pass.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import timm.layers
import timm.models.beit
import timm.models.eva
import torch
import torch.nn.functional as F
from timm.layers import apply_rot_embed_cat
from torch import Tensor, nn

from ..errors import InputError
from ..ops import cls_row as op
from ..precision import single

ROWS = "rows"
LAYERS = "layers"
MASKS = "spatial_masks"  # of `spatial_token`


class _Recordings(threading.local):
    """One open recording of a kind per thread: a model may serve several threads at once.

    Every attribute is there from the start. `torch.compile` guards on them, and compiles a graph again for one
    that appears.
    """

    def __init__(self) -> None:
        for kind in (ROWS, LAYERS, MASKS):
            setattr(self, kind, None)


_thread = _Recordings()


@dataclass(frozen=True)
class AttentionLayer:
    """The inputs and output of an attention module, for those who `measure_layers`."""

    tokens: Tensor  # (B, N, D), its input
    q: Tensor  # (B, heads, N, d), as k and v
    k: Tensor
    v: Tensor
    scale: float
    mask: Tensor | None  # as `scaled_dot_product_attention` takes it
    output: Tensor  # (B, heads, N, d), before the last projection


class record:
    """Collect what attention modules that run inside the `with` add to the recording of that kind.

    A class: `torch.compile` of PyTorch 2.6 does not follow a generator as a context manager.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __enter__(self) -> list[Any]:
        self._outer = open_recording(self._kind)
        found: list[Any] = []
        setattr(_thread, self._kind, found)
        return found

    def __exit__(self, *exception: object) -> None:
        setattr(_thread, self._kind, self._outer)


def open_recording(kind: str) -> list[Any] | None:
    """The thread's recording of that kind."""
    return getattr(_thread, kind)


@dataclass
class _Measurement:
    measure: Callable[[AttentionLayer], Any]
    found: list[Any] = field(default_factory=list)
    tokens: Tensor | None = None  # the input of the layer that is at work


@contextlib.contextmanager
def measure_layers(measure: Callable[[AttentionLayer], Any]) -> Iterator[list[Any]]:
    """Collect what `measure` makes of each covered attention module that runs inside the `with`.

    Measurements may be nested, and each has all layers.
    """
    outer = open_recording(LAYERS)
    measurement = _Measurement(measure)
    setattr(_thread, LAYERS, [*(outer or ()), measurement])
    try:
        yield measurement.found
    finally:
        setattr(_thread, LAYERS, outer)


def record_cls_rows() -> contextlib.AbstractContextManager[list[Tensor]]:
    """Collect the rows, each (B, N), of the covered attention modules that run inside the `with`."""
    return record(ROWS)


def cls_row(q: Tensor, k: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """Attention of token 0 to all tokens, averaged over heads: q, k (B, heads, N, d) -> (B, N).

    `mask` broadcasts to (B, heads, N, N) and is added, or chooses where it is boolean, as in
    `scaled_dot_product_attention`. The softmax is in float32, or float64 where q is.
    """
    if mask is None and not (q.requires_grad and torch.is_grad_enabled()):
        return op.cls_row(q, k, scale)
    return op.rows_of_heads(q, k, scale, mask).mean(1)


def attention_of_heads(layer: AttentionLayer) -> Iterator[Tensor]:
    """The matrices (B, N, N) one head after another."""
    for head in range(layer.q.shape[1]):
        scores = (layer.q[:, head] * layer.scale) @ layer.k[:, head].mT
        scores = single(scores)
        if layer.mask is not None:
            mask = layer.mask.expand(-1, layer.q.shape[1], -1, -1)[:, head]
            chooses = mask.dtype == torch.bool
            scores = scores.masked_fill(~mask, float("-inf")) if chooses else scores + mask
        yield scores.softmax(-1)


class _CoveredAttention(nn.Module):
    """The covered classes' shared part; each is mixed with the timm class that it covers."""

    row_in_training: bool
    row_in_evaluation: bool
    scale: float
    num_heads: int
    attn_drop: nn.Dropout
    # Of some classes and not of others; mypy knows them no better than as modules or tensors.
    qkv: Any
    q_proj: Any
    k_proj: Any
    v_proj: Any
    q_bias: Any
    k_bias: Any
    v_bias: Any
    norm: Any
    proj: Any
    proj_drop: Any

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """q, k, v (B, heads, N, d) -> (B, N, heads * d), with the CLS row recorded on the way."""
        if self.row_in_training if self.training else self.row_in_evaluation:
            if mask is None and q.requires_grad and torch.is_grad_enabled():
                q, k, row = op.row_beside_attention(q, k, self.scale)
            else:
                row = cls_row(q, k, self.scale, mask)
            rows = open_recording(ROWS)
            if rows is not None:
                rows.append(row)
        dropout = self.attn_drop.p if self.training else 0.0
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        for measurement in open_recording(LAYERS) or ():
            layer = AttentionLayer(measurement.tokens, q, k, v, self.scale, mask, x)
            measurement.found.append(measurement.measure(layer))
        return x.transpose(1, 2).flatten(2)

    def project_out(self, x: Tensor, gate: Tensor | None) -> Tensor:
        x = self.norm(x)
        if gate is not None:
            x = x * gate
        return self.proj_drop(self.proj(x))

    def open_gate(self, x: Tensor) -> Tensor | None:
        gate = getattr(self, "gate", None)  # older timm has none
        return None if gate is None else gate(x).sigmoid()

    def split_heads(self, x: Tensor, heads: int) -> Tensor:
        """(B, N, heads * d) -> (B, heads, N, d)"""
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    def project_in(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, N, D) -> q, k, v (B, heads, N, d), by one projection or three."""
        for measurement in open_recording(LAYERS) or ():
            measurement.tokens = x  # `attend` adds the rest
        if self.qkv is None:
            kv_heads = getattr(self, "num_kv_heads", self.num_heads)
            return (
                self.split_heads(self.q_proj(x), self.num_heads),
                self.split_heads(self.k_proj(x), kv_heads),
                self.split_heads(self.v_proj(x), kv_heads),
            )
        if getattr(self, "q_bias", None) is None:
            qkv = self.qkv(x)
        else:
            bias = torch.cat((self.q_bias, self.k_bias, self.v_bias))
            separate = self.qkv_bias_separate
            qkv = self.qkv(x) + bias if separate else F.linear(x, self.qkv.weight, bias)
        return qkv.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


def _refuse_causal(is_causal: bool) -> None:
    if is_causal:
        raise InputError("causal attention has no CLS map: the CLS token would see itself alone")


class VitAttention(_CoveredAttention, timm.layers.Attention):
    """ViT, DeiT, DeiT-III, DINO, DINOv2, CLIP, PiT, Conformer."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        _refuse_causal(is_causal)
        gate = self.open_gate(x)
        q, k, v = self.project_in(x)
        x = self.attend(self.q_norm(q), self.k_norm(k), v, attn_mask)
        return self.project_out(x, gate)


class _RopeAttention(_CoveredAttention):
    """Rotary position embeddings on the patch tokens; the prefix tokens have none."""

    num_prefix_tokens: int
    q_norm: Any
    k_norm: Any

    def rotate(self, x: Tensor, rope: Tensor) -> Tensor:
        prefix, patches = x[:, :, : self.num_prefix_tokens], x[:, :, self.num_prefix_tokens :]
        # timm 1.0.20 has networks that rotate halves, and the keyword for it.
        options = {"half": True} if getattr(self, "rotate_half", False) else {}
        return torch.cat([prefix, apply_rot_embed_cat(patches, rope, **options)], dim=2)

    def forward(
        self,
        x: Tensor,
        rope: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        _refuse_causal(is_causal)
        gate = self.open_gate(x)
        q, k, v = self.project_in(x)
        q, k = self.q_norm(q), self.k_norm(k)
        if rope is not None:
            q, k = self.rotate(q, rope).type_as(v), self.rotate(k, rope).type_as(v)
        groups = q.shape[1] // k.shape[1]  # grouped-query attention: several query heads share a key head
        if groups > 1:
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        return self.project_out(self.attend(q, k, v, attn_mask), gate)


class RopeAttention(_RopeAttention, timm.layers.AttentionRope):
    """EVA-style models with timm's general rotary attention."""


class EvaAttention(_RopeAttention, timm.models.eva.EvaAttention):
    """EVA02, EVA-CLIP, DINOv3."""


class BeitAttention(_CoveredAttention, timm.models.beit.Attention):
    """BEiT, BEiTv2: a learned bias for every pair of positions, of the block, of the model, or both."""

    def forward(self, x: Tensor, shared_rel_pos_bias: Tensor | None = None) -> Tensor:
        bias = shared_rel_pos_bias
        if self.relative_position_bias_table is not None:
            own = self._get_rel_pos_bias()
            bias = own if bias is None else own + bias
        q, k, v = self.project_in(x)
        return self.proj_drop(self.proj(self.attend(q, k, v, bias)))


COVERED: dict[type[nn.Module], type[nn.Module]] = {
    timm.layers.Attention: VitAttention,
    timm.layers.AttentionRope: RopeAttention,
    timm.models.eva.EvaAttention: EvaAttention,
    timm.models.beit.Attention: BeitAttention,
}


def can_cover(attention: nn.Module) -> bool:
    # Exact types: a subclass may have a forward of its own.
    return type(attention) in COVERED or type(attention) in COVERED.values()


def cover_attention(attention: Any, row_in_training: bool, row_in_evaluation: bool = True) -> None:
    """Make `attention` able to record; its CLS row it computes in the modes that are asked for."""
    attention.__class__ = COVERED.get(type(attention), type(attention))
    attention.row_in_training = row_in_training
    attention.row_in_evaluation = row_in_evaluation
