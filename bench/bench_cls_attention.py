"""The CLS row beside fused attention, alone and as a share of inference.

    pytest bench/bench_cls_attention.py --benchmark-only

Heads of 64 channels, as in DeiT: 6 in DeiT-Small, 12 in DeiT-Base. The reference is attention that forms its
matrix, of which the row is a part. Whole networks are compared by processor time on the CPU, which a busy
machine disturbs least.
"""

import pytest
import timm.layers
import torch
from implementations import MODES, Implementation, across_backends, proven, shapes, tasks
from measure import NotRun, Task

from scm_fast import create_model
from scm_fast.benchmarks.table import CPU_TIME, TIME, Case
from scm_fast.models.cls_attention import cover_attention, record_cls_rows

CHANNELS = 64  # of a head
# The row is under 1 % of the network: the rest of the margin is for noise.
MAX_INFERENCE_RATIO = 1.03
FIRST = (16, 6, 14)
SHAPES = shapes(FIRST, full=[(128, 6, 14), (16, 12, 14), (16, 6, 28), (2, 6, 64)])


@pytest.mark.parametrize(("batch", "heads", "side"), SHAPES)
@pytest.mark.parametrize("mode", MODES)
def test_cls_attention(compare, device, full, mode, batch, heads, side):
    tokens = side**2 + 1  # CLS and the grid
    qkv = torch.randn(batch, tokens, 3, heads, CHANNELS, device=device, requires_grad=True)
    doutput = (
        torch.randn(batch, tokens, heads * CHANNELS, device=device),
        torch.randn(batch, tokens, device=device),
    )
    attention = timm.layers.Attention(heads * CHANNELS, heads).to(device).train()
    cover_attention(attention, row_in_training=True)

    def projected() -> tuple[torch.Tensor, ...]:
        return qkv.permute(2, 0, 3, 1, 4).unbind(0)

    def literal() -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = projected()
        matrix = (q @ k.mT * CHANNELS**-0.5).softmax(-1)
        return (matrix @ v).transpose(1, 2).flatten(2), matrix.mean(1)[:, 0]

    def row_beside_fused() -> tuple[torch.Tensor, torch.Tensor]:
        with record_cls_rows() as rows:
            out = attention.attend(*projected())
        return out, rows[0]

    def make(backend: str) -> Implementation:
        return Implementation(literal if backend == "reference" else row_beside_fused, (qkv,))

    found = across_backends(make, device, compiling=full or (mode, batch, heads, side) == ("both", *FIRST))
    found["triton"] = NotRun("this op has no kernel of its own: it runs beside PyTorch's fused attention")
    case = Case("cls_attention", mode, batch, None, side, side, "float32", f"{heads} heads")
    compare(case, tasks(proven(found, doutput), mode, doutput))


@pytest.mark.full
@torch.inference_mode()
def test_inference_costs_no_more_than_backbone_and_head(compare, device):
    """The map of a trained network for a batch of images, against its backbone and head without any map."""
    trained = create_model("deit_small_patch16_224", 200, "scm").to(device)
    model = trained.for_inference()
    plain = trained.for_inference()
    for block in plain.backbone.blocks:
        block.attn.__class__ = timm.layers.Attention
    images = torch.randn(8, 3, 224, 224, device=device)

    def backbone_and_head() -> torch.Tensor:
        patches = plain.backbone.forward_features(images)[:, 1:]
        return plain.head(patches.transpose(1, 2).unflatten(2, (14, 14)))

    torch.testing.assert_close(model(images).semantic, backbone_and_head(), rtol=1e-4, atol=1e-4)
    networks = {
        "backbone and head": Task(lambda _: backbone_and_head()),
        "torch": Task(lambda _: model(images)),
    }
    metric = CPU_TIME if device.type == "cpu" else TIME
    case = Case("inference", "forward", 8, 200, 14, 14, "float32", "DeiT-Small, 224 px")
    measured = compare(case, networks, base="backbone and head", metric=metric, min_rounds=31)
    assert measured.ratio("torch", "backbone and head") <= MAX_INFERENCE_RATIO
