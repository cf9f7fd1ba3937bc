"""Conformer: the authors' names and shapes, and their network's arithmetic."""

import logging

import pytest
import torch
import torch.nn.functional as F

from scm_fast import InputError, create_model
from scm_fast.models.conformer import VARIANTS, Conformer

TINY = {"depth": 6, "embed_dim": 48, "num_heads": 3, "channel_ratio": 1, "base_channels": 16}


def published_names():
    """The parameter names of the authors' Conformer with 12 blocks, by their modules."""
    norm = ["weight", "bias"]
    batch_norm = [*norm, "running_mean", "running_var", "num_batches_tracked"]

    def under(prefix, names):
        return [f"{prefix}.{name}" for name in names]

    def bottleneck(prefix, project):
        names = [f"conv{i}.weight" for i in (1, 2, 3)]
        names += [name for i in (1, 2, 3) for name in under(f"bn{i}", batch_norm)]
        if project:
            names += ["residual_conv.weight", *under("residual_bn", batch_norm)]
        return under(prefix, names)

    def block(prefix):
        parts = ["norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2"]
        return [name for part in parts for name in under(f"{prefix}.{part}", norm)]

    names = ["cls_token", "conv1.weight", *under("bn1", batch_norm), *bottleneck("conv_1", True)]
    for part in ("trans_norm", "trans_cls_head", "conv_cls_head", "trans_patch_conv"):
        names += under(part, norm)
    names += block("trans_1")
    for i in range(2, 13):
        stage = f"conv_trans_{i}"
        names += bottleneck(f"{stage}.cnn_block", project=i in (5, 9))
        names += bottleneck(f"{stage}.fusion_block", project=i == 12)
        names += under(f"{stage}.squeeze_block.conv_project", norm) + under(f"{stage}.squeeze_block.ln", norm)
        names += under(f"{stage}.expand_block.conv_project", norm) + under(
            f"{stage}.expand_block.bn", batch_norm
        )
        names += block(f"{stage}.trans_block")
    return set(names)


def published_file(path, num_classes=1000):
    """A file in the authors' format: Conformer-S with both classifiers, random weights."""
    backbone = Conformer(**VARIANTS["conformer_small_patch16"], num_classes=num_classes)
    state = backbone.state_dict()
    state["trans_cls_head.weight"] = torch.randn(num_classes, 384)
    state["trans_cls_head.bias"] = torch.randn(num_classes)
    torch.save(state, path)
    return state


def test_conformer_small_has_the_published_names_and_size():
    model = Conformer(**VARIANTS["conformer_small_patch16"])
    assert model.state_dict().keys() | {"trans_cls_head.weight", "trans_cls_head.bias"} == published_names()
    parameters = sum(p.numel() for p in model.parameters()) + 385 * 1000  # with the transformer's classifier
    assert round(parameters / 1e6, 1) == 37.7  # the authors' table
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes["trans_patch_conv.weight"] == (384, 64, 4, 4)
    assert shapes["conv_trans_4.squeeze_block.conv_project.weight"] == (384, 64, 1, 1)
    assert shapes["conv_trans_5.cnn_block.residual_conv.weight"] == (512, 256, 1, 1)
    assert shapes["conv_trans_12.fusion_block.conv2.weight"] == (256, 256, 3, 3)
    assert shapes["conv_cls_head.weight"] == (1000, 1024)


def literal_conformer(weights, images, heads, depth, patch):
    """Tokens, convolution logits and attention matrices by the authors' equations, in evaluation mode."""

    def batch_norm(x, name, eps=1e-6):
        mean, var = weights[f"{name}.running_mean"], weights[f"{name}.running_var"]
        return F.batch_norm(x, mean, var, weights[f"{name}.weight"], weights[f"{name}.bias"], eps=eps)

    def layer_norm(x, name, eps=1e-6):
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], eps)

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def bottleneck(x, name, stride=1, extra=0.0):
        y = F.relu(batch_norm(F.conv2d(x, weights[f"{name}.conv1.weight"]), f"{name}.bn1")) + extra
        narrow = F.relu(
            batch_norm(F.conv2d(y, weights[f"{name}.conv2.weight"], stride=stride, padding=1), f"{name}.bn2")
        )
        y = batch_norm(F.conv2d(narrow, weights[f"{name}.conv3.weight"]), f"{name}.bn3")
        if f"{name}.residual_conv.weight" in weights:
            x = batch_norm(
                F.conv2d(x, weights[f"{name}.residual_conv.weight"], stride=stride), f"{name}.residual_bn"
            )
        return F.relu(x + y), narrow

    def block(x, name):
        qkv = linear(layer_norm(x, f"{name}.norm1"), f"{name}.attn.qkv")
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
        attention = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        matrices.append(attention)
        x = x + linear((attention @ v).transpose(1, 2).flatten(2), f"{name}.attn.proj")
        return x + linear(
            F.gelu(linear(layer_norm(x, f"{name}.norm2"), f"{name}.mlp.fc1")), f"{name}.mlp.fc2"
        )

    matrices = []
    stem = F.relu(batch_norm(F.conv2d(images, weights["conv1.weight"], stride=2, padding=3), "bn1", eps=1e-5))
    stem = F.max_pool2d(stem, 3, 2, 1)
    x, _ = bottleneck(stem, "conv_1")
    stride = patch // 4
    tokens = F.conv2d(
        stem, weights["trans_patch_conv.weight"], weights["trans_patch_conv.bias"], stride=stride
    )
    grid = tokens.shape[-2:]
    tokens = tokens.flatten(2).transpose(1, 2)
    tokens = block(torch.cat([weights["cls_token"].expand(len(images), -1, -1), tokens], 1), "trans_1")
    for i in range(2, depth + 1):
        name, third = f"conv_trans_{i}", depth // 3
        token_stride = stride // 2 ** ((i - 1) // third)
        x, narrow = bottleneck(x, f"{name}.cnn_block", stride=2 if i in (third + 1, 2 * third + 1) else 1)
        project = f"{name}.squeeze_block.conv_project"
        down = F.conv2d(narrow, weights[f"{project}.weight"], weights[f"{project}.bias"])
        down = F.avg_pool2d(down, token_stride).flatten(2).transpose(1, 2)
        down = F.gelu(layer_norm(down, f"{name}.squeeze_block.ln"))
        tokens = block(torch.cat([tokens[:, :1], down], 1) + tokens, f"{name}.trans_block")
        up = tokens[:, 1:].transpose(1, 2).unflatten(2, grid)
        project = f"{name}.expand_block.conv_project"
        up = F.conv2d(up, weights[f"{project}.weight"], weights[f"{project}.bias"])
        up = F.relu(batch_norm(up, f"{name}.expand_block.bn"))
        up = up.repeat_interleave(token_stride, 2).repeat_interleave(token_stride, 3)
        x, _ = bottleneck(x, f"{name}.fusion_block", stride=2 if i == depth else 1, extra=up)
    return layer_norm(tokens, "trans_norm", eps=1e-5), linear(x.mean((2, 3)), "conv_cls_head"), matrices


@pytest.mark.parametrize("size", [(64, 96), (80, 64)], ids=str)
def test_conformer_equals_the_literal_network(size):
    torch.manual_seed(0)
    model = create_model("conformer_small_patch16", 5, backbone_options=TINY).double()
    with torch.no_grad():
        for value in model.backbone.state_dict().values():
            if value.is_floating_point():
                value.copy_(
                    torch.rand(value.shape) + 0.5 if value.ndim == 1 else 0.15 * torch.randn(value.shape)
                )
    images = torch.randn(2, 3, *size, dtype=torch.float64)
    tokens, conv_logits, matrices = literal_conformer(model.backbone.state_dict(), images, 3, 6, 16)
    got = model.eval()(images)
    grid = (size[0] // 16, size[1] // 16)
    torch.testing.assert_close(got.attention, torch.stack(matrices).mean((0, 2))[:, 0, 1:].unflatten(1, grid))
    semantic = F.conv2d(
        tokens[:, 1:].transpose(1, 2).unflatten(2, grid), model.head.weight, model.head.bias, padding=1
    )
    torch.testing.assert_close(got.semantic, semantic)
    torch.testing.assert_close(got.logits, semantic.mean((2, 3)) + conv_logits)


def test_the_authors_file_loads_and_other_classifiers_are_dropped(tmp_path, caplog):
    state = published_file(tmp_path / "Conformer_small_patch16.pth")
    with caplog.at_level(logging.WARNING, "scm_fast"):
        model = create_model("conformer_small_patch16", 200, "scm", tmp_path / "Conformer_small_patch16.pth")
    assert "conv_cls_head (1000, 1024) is dropped" in caplog.text
    assert "trans_cls_head (1000, 384) is dropped" in caplog.text
    loaded = model.backbone.state_dict()
    for name in loaded.keys() - {"conv_cls_head.weight", "conv_cls_head.bias"}:
        assert torch.equal(loaded[name], state[name]), name

    caplog.clear()
    cls = create_model("conformer_small_patch16", 1000, "cls", tmp_path / "Conformer_small_patch16.pth")
    assert caplog.text == ""
    assert torch.equal(cls.head.weight, state["trans_cls_head.weight"])
    assert torch.equal(cls.backbone.conv_cls_head.weight, state["conv_cls_head.weight"])


def test_a_file_with_a_wrong_key_is_an_error(tmp_path):
    state = published_file(tmp_path / "file.pth")
    del state["conv_trans_7.expand_block.bn.weight"]
    torch.save({"model": state}, tmp_path / "file.pth")
    with pytest.raises(InputError, match=r"1 missing in the file: conv_trans_7\.expand_block\.bn\.weight"):
        create_model("conformer_small_patch16", 200, pretrained=tmp_path / "file.pth")


def test_every_parameter_is_trained():
    model = create_model("conformer_small_patch16", 5, backbone_options=TINY).train()
    F.cross_entropy(model(torch.randn(4, 3, 64, 64)).logits, torch.tensor([0, 1, 2, 3])).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
