"""The CLS row beside the fused attention, against timm's own unfused attention matrices."""

import copy
import math
import threading

import pytest
import timm
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scm_fast import InputError, create_model, ops
from scm_fast.models import backbones, cls_attention
from scm_fast.models.cls_attention import cls_row, record_cls_rows

SMALL = {"depth": 2, "embed_dim": 48, "num_heads": 3}
# family -> (name, image size, options): a small instance with the family's own block, tokens and embeddings
FAMILIES = {
    "deit": ("deit_tiny_patch16_224", (96, 64), SMALL),
    "deit-distilled": ("deit_tiny_distilled_patch16_224", (64, 64), SMALL),
    "deit3": ("deit3_small_patch16_224", (64, 96), SMALL),
    "augreg": ("vit_tiny_patch16_224.augreg_in21k_ft_in1k", (64, 64), SMALL),
    "dino": ("vit_small_patch16_224.dino", (64, 80), SMALL),
    "dinov2": ("vit_small_patch14_dinov2", (70, 56), SMALL),
    "dinov2-registers": ("vit_small_patch14_reg4_dinov2", (56, 70), SMALL),
    "dinov3": ("vit_small_patch16_dinov3", (64, 96), SMALL),
    "dinov3-qkv-bias": ("vit_small_patch16_dinov3_qkvb", (64, 64), SMALL),
    "eva02": ("eva02_tiny_patch14_224", (70, 56), SMALL),
    "eva02-clip": ("eva02_base_patch16_clip_224", (64, 64), SMALL),
    "pe-core": ("vit_pe_core_tiny_patch16_384", (64, 64), SMALL),
    "beit": ("beit_base_patch16_224", (64, 96), SMALL),
    "beitv2": ("beitv2_base_patch16_224", (64, 64), SMALL),
    "beit-shared-bias": ("beit_base_patch16_224", (64, 64), SMALL | {"use_shared_rel_pos_bias": True}),
    "clip": ("vit_base_patch16_clip_224", (64, 96), SMALL),
    "qk-norm": ("vit_tiny_patch16_224", (64, 64), SMALL | {"qk_norm": True}),
    "pit": ("pit_ti_224", (96, 64), {"depth": (1, 1, 1), "base_dims": (16, 16, 16)}),
    "pit-distilled": ("pit_ti_distilled_224", (64, 64), {"depth": (1, 1, 1), "base_dims": (16, 16, 16)}),
    "conformer": (
        "conformer_small_patch16",
        (64, 96),
        {"depth": 3, "embed_dim": 48, "num_heads": 3, "channel_ratio": 1, "base_channels": 16},
    ),
}
families = pytest.mark.parametrize("family", FAMILIES)


def spread_out(module, std=0.15):
    """Random weights that make attention far from uniform, the same for the same module."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("norm.weight") or ".norm" in name or parameter.ndim == 1:
                noise = torch.rand(parameter.shape, generator=generator) + 0.5
            else:
                noise = torch.randn(parameter.shape, generator=generator) * std
            parameter.copy_(noise)
    return module


def covered(family, dtype=torch.float64):
    name, size, options = FAMILIES[family]
    backbone = backbones.build_backbone(name, 5, None if family == "conformer" else size, options=options)
    backbones.check_backbone(name, backbone)
    backbone = spread_out(backbone).to(dtype).eval()
    unfused = copy.deepcopy(backbone)
    backbones.cover_backbone(backbone, None, row_in_training=True)
    return (
        backbone,
        unfused,
        torch.randn(2, 3, *size, dtype=dtype, generator=torch.Generator().manual_seed(1)),
    )


def unfused_matrices(backbone, images):
    """Every attention matrix (B, heads, N, N) as timm computes it unfused, and the features."""
    matrices = []
    for block in backbones.transformer_blocks(backbone):
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _, inputs, __: matrices.append(inputs[0]))
    return matrices, backbones.extract_features(backbone, images)


def mean_map(matrices, prefix, grids):
    """F0 by its definition: CLS row, patch columns, grid; earlier grids averaged down to the last."""
    maps = []
    for matrix, grid in zip(matrices, grids, strict=True):
        row = matrix.mean(1)[:, 0, prefix:].unflatten(1, grid)
        maps.append(nn.functional.adaptive_avg_pool2d(row, grids[-1]))
    return torch.stack(maps).mean(0)


def prefix_tokens(backbone):
    return getattr(backbone, "num_prefix_tokens", getattr(backbone, "num_tokens", 1))


def token_grids(matrices, prefix, size):
    """The grid of each layer, from its token count and the image's shape."""
    grids = []
    for matrix in matrices:
        tokens = matrix.shape[-1] - prefix
        rows = [h for h in range(1, tokens + 1) if tokens % h == 0]
        best = min(rows, key=lambda h: abs(math.log(h * h / tokens * size[1] / size[0])))
        grids.append((best, tokens // best))
    return grids


@families
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_row_and_gradients_equal_the_unfused_attention(family, dtype, tolerance):
    backbone, unfused, images = covered(family, dtype)
    features = backbones.extract_features(backbone, images)
    matrices, expected = unfused_matrices(unfused, images)
    prefix = prefix_tokens(backbone)
    grids = token_grids(matrices, prefix, images.shape[-2:])
    F0 = mean_map(matrices, prefix, grids)
    assert features.attention.shape == F0.shape == features.patches.shape[:1] + features.patches.shape[2:]
    # Not uniform: a test on uniform attention would pass with wrong keys.
    assert (F0.amax((1, 2)) > 1.15 * F0.amin((1, 2))).all()
    torch.testing.assert_close(features.attention, F0, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(features.patches, expected.patches, atol=1e3 * tolerance, rtol=1e3 * tolerance)

    weight = torch.randn(F0.shape, dtype=dtype, generator=torch.Generator().manual_seed(2))
    (features.attention * weight).sum().backward()
    (F0 * weight).sum().backward()
    compared = 0
    for (name, ours), theirs in zip(backbone.named_parameters(), unfused.parameters(), strict=True):
        if theirs.grad is None:
            assert ours.grad is None, name
            continue
        compared += 1
        scale = max(theirs.grad.abs().max().item(), 1e-3)
        error = (ours.grad - theirs.grad).abs().max().item() / scale
        assert error < 100 * tolerance, f"{name}: {error}"
    assert compared > 10


@pytest.mark.parametrize(
    "family", ["deit", "dinov2-registers", "dinov3", "eva02", "pe-core", "beit", "pit", "conformer"]
)
def test_compiles_without_a_graph_break(family):
    backbone, _, images = covered(family, torch.float32)
    eager = backbones.extract_features(backbone, images)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: backbones.extract_features(backbone, x), backend="aot_eager", fullgraph=True
    )
    got = compiled(images)
    torch.testing.assert_close(got.attention, eager.attention)
    torch.testing.assert_close(got.patches, eager.patches)


CHECKPOINTED = ["deit", "dinov2-registers", "dinov3", "eva02", "beit-shared-bias", "clip", "conformer"]


@pytest.mark.parametrize(
    ("family", "compiled"), [*((family, False) for family in CHECKPOINTED), ("deit", True), ("dinov3", True)]
)
def test_activation_checkpointing_gives_the_same_gradients(family, compiled):
    gradients = []
    for enable in (False, True):
        backbone, _, images = covered(family, torch.float64)
        backbones.set_grad_checkpointing(backbone.train(), enable)
        torch._dynamo.reset()
        extract = backbones.extract_features
        if compiled and enable:
            extract = torch.compile(extract, backend="aot_eager")
        features = extract(backbone, images)
        (features.attention.square().sum() * 1e3 + features.patches.square().mean()).backward()
        gradients.append([p.grad for p in backbone.parameters() if p.grad is not None])
        assert getattr(cls_attention._thread, "rows", None) is None
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(recomputed, plain, rtol=1e-10, atol=1e-12)


def test_checkpointing_that_cannot_work_is_refused(monkeypatch):
    pit, _, _ = covered("pit")
    with pytest.raises(InputError, match="PiT"):
        backbones.set_grad_checkpointing(pit, True)
    deit, _, _ = covered("deit")
    monkeypatch.setattr(backbones, "use_reentrant_ckpt", lambda: True)
    with pytest.raises(InputError, match="TIMM_REENTRANT_CKPT"):
        backbones.set_grad_checkpointing(deit, True)


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("heads", [1, 3])
def test_cls_row_is_the_first_row_of_the_softmax(contiguous, heads):
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(2, 11, 3, heads, 8, dtype=torch.float64, generator=generator)
    q, k, _ = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    if contiguous:
        k = k.contiguous()
    bias = torch.randn(1, heads, 11, 11, dtype=torch.float64, generator=generator)
    keep = torch.rand(2, 1, 11, 11, generator=generator) > 0.3
    scores = q @ k.mT * 0.7
    for mask, masked in [
        (None, scores),
        (bias, scores + bias),
        (keep, scores.masked_fill(~keep, -torch.inf)),
    ]:
        torch.testing.assert_close(cls_row(q, k, 0.7, mask), masked.softmax(-1).mean(1)[:, 0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_error_is_at_most_twice_that_of_plain_attention(dtype):
    generator = torch.Generator().manual_seed(0)
    qkv = (2 * torch.randn(4, 197, 3, 6, 64, generator=generator)).to(dtype)
    q, k, _ = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    exact = (q.double() @ k.double().mT * 0.125).softmax(-1).mean(1)[:, 0]
    plain = (q @ k.mT * 0.125).softmax(-1).mean(1)[:, 0]
    row = cls_row(q, k, 0.125)
    assert row.dtype == torch.float32
    assert (row - exact).abs().max() <= 2 * (plain - exact).abs().max() + 1e-6


@pytest.mark.parametrize("family", ["deit", "dinov3", "qk-norm", "beit"])
def test_autocast(family):
    backbone, _, images = covered(family, torch.float32)
    exact = backbones.extract_features(backbone, images).attention
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = backbones.extract_features(backbone, images).attention
    assert low.dtype == torch.float32
    assert (low - exact).abs().max() < 0.1 * exact.max()
    low.square().sum().backward()
    assert backbones.transformer_blocks(backbone)[0].attn.qkv.weight.grad.isfinite().all()


def test_no_matrix_of_attention_is_kept_for_the_backward_pass():
    model = create_model("deit_tiny_patch16_224", 5, image_size=96, backbone_options=SMALL).train()
    N = 6 * 6 + 1
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(tuple(t.shape)) or t, lambda t: t):
        model(torch.randn(2, 3, 96, 96))
    assert saved
    assert not [shape for shape in saved if shape.count(N) > 1]


def rows_computed(monkeypatch, model, images):
    calls, compute = [], ops.cls_row.rows_of_heads
    monkeypatch.setattr(ops.cls_row, "rows_of_heads", lambda *args: calls.append(args) or compute(*args))
    model(images)
    return len(calls)


@pytest.mark.parametrize("method", ["scm", "tscam", "cls"])
@pytest.mark.parametrize("training", [True, False])
def test_rows_are_computed_only_when_needed(monkeypatch, method, training):
    expected = 0 if training and method != "scm" else 3
    model = create_model(
        "deit_tiny_patch16_224", 5, method, image_size=32, backbone_options=SMALL | {"depth": 3}
    )
    assert rows_computed(monkeypatch, model.train(training), torch.randn(2, 3, 32, 32)) == expected


def test_only_the_chosen_layers_are_used(monkeypatch):
    options = SMALL | {"depth": 4}
    model = create_model(
        "deit_tiny_patch16_224", 5, image_size=64, attention_layers=[1, -1], backbone_options=options
    )
    images = torch.randn(2, 3, 64, 64)
    spread_out(model.backbone).eval()
    unfused = copy.deepcopy(model.backbone)
    for block in unfused.blocks:
        block.attn.__class__ = timm.layers.Attention
    matrices, _ = unfused_matrices(unfused, images)
    got = model.eval()(images).attention
    torch.testing.assert_close(got, mean_map([matrices[1], matrices[3]], 1, [(4, 4)] * 2))
    assert rows_computed(monkeypatch, model, images) == 2
    with pytest.raises(InputError, match="attention_layers must be indices of the 4 layers"):
        create_model("deit_tiny_patch16_224", 5, attention_layers=[4], backbone_options=options)


def test_threads_do_not_see_each_others_rows():
    backbone, _, images = covered("deit", torch.float32)
    inputs = [torch.randn_like(images) for _ in range(4)]
    with torch.no_grad():
        expected = [backbones.extract_features(backbone, x).attention for x in inputs]
        got = [[] for _ in inputs]

        def work(index):
            with torch.no_grad():
                got[index] = [
                    backbones.extract_features(backbone, inputs[index]).attention for _ in range(20)
                ]

        threads = [threading.Thread(target=work, args=(index,)) for index in range(len(inputs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for maps, want in zip(got, expected, strict=True):
        assert len(maps) == 20
        for map_ in maps:
            torch.testing.assert_close(map_, want)


def test_a_recording_ends_with_an_exception():
    with pytest.raises(RuntimeError, match="inside"), record_cls_rows():
        raise RuntimeError("inside")
    assert cls_attention._thread.rows is None


@pytest.mark.parametrize(("name", "reason"), [
    ("swin_tiny_patch4_window7_224", "no CLS token"),
    ("vit_base_patch16_siglip_224", "no CLS token"),
    ("resnet18", "no CLS token"),
    ("cait_xxs24_224", "Cait"),
    ("vit_small_patch16_18x2_224", "ParallelThingsBlock"),
])  # fmt: skip
def test_networks_that_cannot_work_are_refused_by_reason(name, reason):
    with pytest.raises(InputError, match=reason) as error:
        create_model(name, 5)
    assert "DINOv2 with registers (e.g. vit_small_patch14_reg4_dinov2)" in str(error.value)


def test_unknown_names_and_options():
    with pytest.raises(InputError, match=r"did you mean .*deit_tiny_patch16_224"):
        create_model("deit_tinny_patch16_224", 5)
    with pytest.raises(InputError, match="removes tokens"):
        create_model("deit_tiny_patch16_224", 5, backbone_options=SMALL | {"patch_drop_rate": 0.5})
    with pytest.raises(InputError, match=r"does not accept these options.*no_such_option"):
        create_model("deit_tiny_patch16_224", 5, backbone_options={"no_such_option": 1})


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "vit_small_patch16_dinov3"])
def test_dynamic_image_size(name):
    options = SMALL | {"dynamic_img_size": True}
    model = create_model(name, 5, image_size=64, backbone_options=options).eval()
    for size in [(64, 64), (96, 48)]:
        localization = model(torch.randn(1, 3, *size))
        assert localization.attention.shape == (1, size[0] // 16, size[1] // 16)
        assert localization.semantic.shape == (1, 5, size[0] // 16, size[1] // 16)


def _ddp_worker(rank, world, address, gradients):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    model, images, labels = _ddp_case()
    parallel = DistributedDataParallel(model)  # fails on a parameter without a gradient
    for _ in range(2):
        parallel.zero_grad()
        logits = parallel(images.chunk(world)[rank]).logits
        nn.functional.cross_entropy(logits, labels.chunk(world)[rank]).backward()
    if rank == 0:
        gradients.update({name: p.grad.numpy() for name, p in model.named_parameters()})
    torch.distributed.destroy_process_group()


def _ddp_case():
    torch.manual_seed(0)
    model = create_model("deit_tiny_patch16_224", 5, image_size=64, backbone_options=SMALL).double().train()
    return spread_out(model), torch.randn(4, 3, 64, 64, dtype=torch.float64), torch.tensor([0, 1, 2, 3])


def test_distributed_data_parallel_equals_one_process(tmp_path):
    with mp.Manager() as manager:
        gradients = manager.dict()
        mp.spawn(_ddp_worker, (2, f"file://{tmp_path}/store", gradients), nprocs=2)
        gradients = dict(gradients)
    model, images, labels = _ddp_case()
    nn.functional.cross_entropy(model(images).logits, labels).backward()
    assert gradients.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(torch.from_numpy(gradients[name]), parameter.grad, msg=name)
