"""Maps that need no training, against literal ones with all attention matrices, and pytorch-grad-cam's."""

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from literal_transformer import tokens_and_matrices

from scm_fast import InputError, create_model
from scm_fast.evaluation.predictor import Predictor, Strategy
from scm_fast.models.cls_attention import LAYERS, open_recording
from scm_fast.models.maps import get_map, look, map_names
from scm_fast.models.methods import method_names

SMALL = {"embed_dim": 48, "depth": 4, "num_heads": 3}
BACKBONES = ["deit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "vit_small_patch14_reg4_dinov2"]
SIDES = {"deit_tiny_patch16_224": (48, 80), "deit_tiny_distilled_patch16_224": (48, 80)}
CLASSES = torch.tensor([[0, 4], [3, 3]])


def make_model(name="deit_tiny_patch16_224", method="cls"):
    torch.manual_seed(0)
    model = create_model(
        name, 5, method, image_size=SIDES.get(name, (42, 70)), backbone_options=SMALL
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return model.eval()


def images_for(model):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, *model.config.image_size, dtype=torch.float64, generator=generator)


def maps_of(name, model, images, classes=CLASSES):
    localization, maps = look(get_map(name), model, images)
    return localization, maps(classes)


def literal(model, images):
    """Logits, and the attention matrices (B, heads, N, N) of all layers, in one graph."""
    tokens, matrices = tokens_and_matrices(model.backbone, images)
    return model.head(tokens[:, 0]), matrices


def on_grid(model, row):
    return row[:, model.backbone.num_prefix_tokens :].reshape(len(row), 3, 5)


def literal_rollout(model, images):
    _, matrices = literal(model, images)
    result = torch.eye(matrices[0].shape[-1], dtype=torch.float64).expand(2, -1, -1)
    for matrix in matrices:
        result = (matrix.mean(1) + torch.eye(matrix.shape[-1], dtype=torch.float64)) / 2 @ result
    return on_grid(model, result[:, 0])


def literal_rpam(model, images):
    _, matrices = literal(model, images)
    total = 0
    for matrix in matrices:
        mean = matrix.mean(1)
        tokens = mean.shape[-1]
        for i in range(tokens):
            total = total + mean[:, 0, i, None] * mean[:, i] / tokens
    return on_grid(model, total / len(matrices))


def literal_attention(model, images):
    _, matrices = literal(model, images)
    return on_grid(model, sum(matrix.mean(1)[:, 0] for matrix in matrices) / len(matrices))


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize(
    ("name", "expected"),
    [("rollout", literal_rollout), ("rpam", literal_rpam), ("attention", literal_attention)],
)
def test_maps_of_attention_equal_literal_ones(backbone, name, expected):
    model = make_model(backbone)
    images = images_for(model)
    localization, maps = maps_of(name, model, images)
    with torch.no_grad():
        wanted = expected(model, images)
        torch.testing.assert_close(localization.logits, literal(model, images)[0])
    assert wanted.std() > 1e-5
    for column in range(2):  # whatever the class
        torch.testing.assert_close(maps[:, column], wanted, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_chefer_equals_the_literal_one(backbone):
    model = make_model(backbone)
    images = images_for(model)
    _, maps = maps_of("chefer", model, images)
    for column in range(2):
        logits, matrices = literal(model, images)
        chosen = logits.gather(1, CLASSES[:, column, None]).sum()
        gradients = torch.autograd.grad(chosen, matrices)
        identity = torch.eye(matrices[0].shape[-1], dtype=torch.float64)
        result = identity.expand(2, -1, -1)
        for matrix, gradient in zip(matrices, gradients, strict=True):
            result = result + (matrix * gradient).clamp(min=0).mean(1) @ result
        torch.testing.assert_close(maps[:, column], on_grid(model, result[:, 0]), rtol=1e-6, atol=1e-12)


def scale(x):
    return (x - x.min()) / (1e-7 + (x - x.min()).max())


@pytest.mark.parametrize("name", ["gradcam", "layercam"])
def test_cams_equal_those_of_pytorch_grad_cam(name):
    package = pytest.importorskip(
        "pytorch_grad_cam", reason="grad-cam is not installed: pip install -e .[dev]"
    )
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    model = make_model().float()
    images = images_for(model).float()

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(x).logits

    def reshape(x):
        return x[:, 1:].transpose(1, 2).unflatten(2, (3, 5))

    kind = {"gradcam": package.GradCAM, "layercam": package.LayerCAM}[name]
    with kind(Logits(), [model.backbone.blocks[-1].norm1], reshape_transform=reshape) as cam:
        theirs = cam(images, [ClassifierOutputTarget(c) for c in CLASSES[:, 1].tolist()])
    _, maps = maps_of(name, model, images)
    for ours, other in zip(maps[:, 1].numpy(), theirs, strict=True):
        # They scale to [0, 1], resize, and scale again.
        np.testing.assert_allclose(scale(cv2.resize(scale(ours), (80, 48))), other, atol=2e-5)
        assert ours.max() > 0


def test_tokencut_is_the_second_eigenvector_of_the_normalised_cut():
    model = make_model()
    images = images_for(model)
    _, maps = maps_of("tokencut", model, images)
    network = model.backbone
    with torch.no_grad():
        x = network.norm_pre(network._pos_embed(network.patch_embed(images)))
        x = network.blocks[:-1](x)
        keys = network.blocks[-1].attn.qkv(network.blocks[-1].norm1(x)).chunk(3, -1)[1][:, 1:]
        keys = keys - keys.mean(1, keepdim=True)
        similar = F.cosine_similarity(keys.unsqueeze(1), keys.unsqueeze(2), dim=-1)
    for image in range(2):
        weights = torch.where(similar[image] > 0.2, 1.0, 1e-5).double()
        degrees = torch.diag(weights.sum(1))
        values, vectors = torch.linalg.eig(torch.linalg.inv(degrees) @ (degrees - weights))
        vector = vectors.real[:, values.real.argsort()[1]]
        vector = vector * vector[vector.abs().argmax()].sign()
        found = maps[image, 0].flatten()
        torch.testing.assert_close(found / found.norm(), vector / vector.norm(), rtol=1e-5, atol=1e-7)


def test_maps_without_gradients_keep_no_graph_and_none_stays_recording():
    model = make_model()
    for name in map_names():
        localization, maps = maps_of(name, model, images_for(model))
        assert not maps.requires_grad
        assert not localization.logits.requires_grad
        assert maps.shape == (2, 2, 3, 5)
        assert not open_recording(LAYERS)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("method", method_names())
@pytest.mark.parametrize("name", map_names())
def test_every_map_serves_every_method_through_the_predictor(method, name):
    model = make_model(method=method).float()
    images = images_for(model).float()
    predictor = Predictor(model.for_inference(), torch.device("cpu"), map=name)
    localization, maps = predictor(images, lambda logits: logits.argmax(1, keepdim=True))
    assert maps.shape == (2, 1, 3, 5)
    assert maps.isfinite().all()
    assert torch.equal(localization.logits, model(images).logits)
    predictor.mirror = True
    _, mirrored = predictor(images, lambda logits: CLASSES[:, :1])
    _, turned = predictor(images.flip(-1), lambda logits: CLASSES[:, :1])
    if name != "tokencut":  # its eigenvector may be of either sign where the parts are alike
        torch.testing.assert_close(mirrored, turned.flip(-1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", map_names())
def test_maps_in_bf16_are_near_those_in_float32(name):
    model = make_model().float()
    images = images_for(model).float()
    whole, half = (
        Predictor(model, torch.device("cpu"), map=name, amp=amp)(images, lambda logits: CLASSES)[1].float()
        for amp in (None, torch.bfloat16)
    )
    signs = (1, -1) if name == "tokencut" else (1,)  # its eigenvector may be of either sign
    assert min((whole - sign * half).norm() for sign in signs) < 0.1 * whole.norm()


def test_wrong_maps_are_named():
    with pytest.raises(
        InputError, match=r"map must be one of attention, chefer, gradcam.*did you mean 'rollout'"
    ):
        Predictor(make_model(), torch.device("cpu"), map="rolout")
    with pytest.raises(InputError, match="exclude each other"):
        Predictor(make_model(), torch.device("cpu"), Strategy.parse("F0"), map="rollout")
    model = create_model("pit_ti_224", 5, "cls", image_size=64).eval()
    with pytest.raises(InputError, match="'pit_ti_224' have fewer and fewer; leave --map out"):
        look(get_map("rollout"), model, torch.randn(1, 3, 64, 64))
