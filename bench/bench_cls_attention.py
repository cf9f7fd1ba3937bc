"""The CLS row beside fused attention, alone and as a share of inference.

    pytest bench/bench_cls_attention.py --benchmark-only

DeiT-Small's shapes: B = 16, 6 heads, 197 tokens of 64 channels. Inference is compared in alternating runs by
the median of their CPU seconds, which a busy machine disturbs least.
"""

import statistics
import time

import pytest
import timm.layers
import torch
import torch.nn.functional as F

from scm_fast import create_model
from scm_fast.models.cls_attention import cls_row

# The row is under 1 % of the network: the rest of the margin is for noise.
MAX_INFERENCE_RATIO = 1.03


def projections(requires_grad=False):
    qkv = torch.randn(16, 197, 3, 6, 64, requires_grad=requires_grad)
    return qkv.permute(2, 0, 3, 1, 4).unbind(0)


def fused(q, k, v):
    return F.scaled_dot_product_attention(q, k, v), cls_row(q, k, 0.125)


def unfused(q, k, v):
    matrix = (q @ k.mT * 0.125).softmax(-1)
    return matrix @ v, matrix.mean(1)[:, 0]


@pytest.mark.parametrize("provider", [fused, unfused], ids=["fused_and_row", "unfused"])
@pytest.mark.parametrize("mode", ["forward", "full"])
def test_attention_with_row(benchmark, provider, mode):
    q, k, v = projections(requires_grad=mode == "full")
    for ours, theirs in zip(fused(q, k, v), unfused(q, k, v), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)

    def run():
        out, row = provider(q, k, v)
        if mode == "full":
            (out.sum() + row.sum()).backward()

    benchmark.pedantic(run, rounds=7, warmup_rounds=1)


@pytest.mark.slow
def test_inference_costs_no_more_than_backbone_and_head(benchmark):
    plain = create_model("deit_small_patch16_224", 200, "tscam").eval()
    for block in plain.backbone.blocks:
        block.attn.__class__ = timm.layers.Attention
    model = create_model("deit_small_patch16_224", 200, "scm").for_inference()
    images = torch.randn(8, 3, 224, 224)

    def backbone_and_head():
        tokens = plain.backbone.forward_features(images)[:, 1:]
        return plain.head(tokens.transpose(1, 2).unflatten(2, (14, 14)))

    seconds = {"backbone_and_head": [], "for_inference": []}

    def alternate():
        for name, run in (("backbone_and_head", backbone_and_head), ("for_inference", lambda: model(images))):
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)

    with torch.inference_mode():
        benchmark.pedantic(alternate, rounds=31, warmup_rounds=2)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    ratio = medians["for_inference"] / medians["backbone_and_head"]
    benchmark.extra_info.update(medians | {"ratio": ratio})
    print(f"\nfor_inference / backbone and head: {ratio:.3f}x")
    assert ratio <= MAX_INFERENCE_RATIO
