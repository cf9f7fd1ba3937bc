"""LCTR against a literal implementation: attention matrices are formed, experts mixed image by image."""

import pytest
import torch
import torch.nn.functional as F
from literal_transformer import assert_equal_gradients, tokens_and_matrices

from scm_fast import InputError, create_model, load_model, save_model
from scm_fast.models.export import export_model

SMALL = {"embed_dim": 48, "depth": 3, "num_heads": 3}


def make_model(name="deit_tiny_patch16_224", **options):
    torch.manual_seed(0)
    model = create_model(name, 5, "lctr", image_size=(48, 80), backbone_options=SMALL, **options).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def literal(model, images):
    """logits (B, C), S (B, C, H, W) and RPAM (B, H, W)"""
    x, matrices = tokens_and_matrices(model.backbone, images)
    prefix = model.backbone.num_prefix_tokens
    X = x[:, prefix:].transpose(1, 2).reshape(len(x), -1, 3, 5)
    F0 = (sum(m.mean(1)[:, 0, prefix:] for m in matrices) / len(matrices)).reshape(-1, 1, 3, 5)
    head, logits, semantics = model.head, [], []
    for image in range(len(X)):
        U = F.conv2d(X[image] * (1 - F0[image]), head.discover.weight, head.discover.bias, padding=1)
        r = torch.sigmoid(head.by_mean(U.flatten(1).mean(1)) + head.by_maximum(U.flatten(1).max(1).values))
        kernel = 0
        for expert in range(4):
            kernel = kernel + r[expert] * head.experts[expert]
        S = F.conv2d(X[image], kernel, head.bias, padding=1)
        semantics.append(S)
        logits.append(F.avg_pool2d(S, 3, stride=1, padding=1).mean((1, 2)))
    rpam = 0
    for matrix in matrices:
        mean = matrix.mean(1)
        rpam = rpam + torch.einsum("bi,bij->bj", mean[:, 0], mean) / mean.shape[-1] / len(matrices)
    return torch.stack(logits), torch.stack(semantics), rpam[:, prefix:].reshape(-1, 3, 5)


@pytest.mark.parametrize(
    "name", ["deit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "vit_base_patch16_clip_224"]
)
def test_lctr_equals_the_literal_network(name):
    model = make_model(name)
    images, labels = torch.randn(3, 3, 48, 80, dtype=torch.float64), torch.tensor([0, 3, 4])
    parameters = list(model.parameters())
    got = model.train()(images)
    assert got.terms == {}
    found = torch.autograd.grad(F.cross_entropy(got.logits, labels), parameters, allow_unused=True)
    logits, semantic, rpam = literal(model, images)
    expected = torch.autograd.grad(F.cross_entropy(logits, labels), parameters, allow_unused=True)
    exactly = {"rtol": 1e-8, "atol": 1e-10}
    torch.testing.assert_close(got.logits, logits, **exactly)
    assert_equal_gradients(model, found, expected, **exactly)
    localization = model.eval()(images)
    torch.testing.assert_close(localization.logits, logits, **exactly)
    torch.testing.assert_close(localization.attention, rpam, **exactly)
    maps = localization.activation_map(labels)
    torch.testing.assert_close(maps, rpam * semantic[torch.arange(3), labels].relu(), **exactly)


def test_no_attention_matrix_is_kept_in_training():
    model = create_model("deit_tiny_patch16_224", 5, "lctr", image_size=(64, 80), backbone_options=SMALL)
    kept, tokens = [], 1 + 4 * 5
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(tuple(x.shape)) or x, lambda x: x):
        model.train()(torch.randn(2, 3, 64, 80))
    assert kept
    assert not [shape for shape in kept if shape[-2:] == (tokens, tokens)]


def test_it_compiles_exports_and_comes_back(tmp_path):
    model = make_model().float()
    images = torch.randn(2, 3, 48, 80)
    torch._dynamo.reset()
    compiled = torch.compile(model.train(), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(images).logits, model(images).logits)
    expected = model.eval()(images)
    loaded = load_model(save_model(model, tmp_path))
    for ours, theirs in zip(loaded(images), expected, strict=True):
        assert torch.equal(ours, theirs)
    export_model(model, tmp_path / "lctr.pt2")
    outputs = torch.export.load(tmp_path / "lctr.pt2").module()(images)
    for name, value in outputs.items():
        torch.testing.assert_close(value, getattr(expected, name))
    assert outputs.keys() == {"logits", "attention", "semantic"}


def test_layers_with_fewer_tokens_are_refused():
    with pytest.raises(InputError, match=r"method 'lctr' averages .* Families that work: ViT"):
        create_model("pit_ti_224", 5, "lctr")


def test_a_published_file_is_read(tmp_path):
    torch.manual_seed(0)
    ours = create_model("deit_tiny_patch16_224", 6, "lctr", preset="official").eval()
    names = {
        "head.discover.weight": "conv3x3.weight",
        "head.discover.bias": "conv3x3.bias",
        "head.experts": "CDM.weight",
        "head.bias": "CDM.bias",
        "head.by_mean.weight": "CDM._routing_fn_two.fc.weight",
        "head.by_mean.bias": "CDM._routing_fn_two.fc.bias",
        "head.by_maximum.weight": "CDM._routing_fn_two.fc2.weight",
        "head.by_maximum.bias": "CDM._routing_fn_two.fc2.bias",
    }
    state = {
        names.get(name, name.removeprefix("backbone.")): value for name, value in ours.state_dict().items()
    }
    torch.save({"model": state}, tmp_path / "lctr.pth")
    loaded = load_model(tmp_path / "lctr.pth")
    assert (loaded.config.method, loaded.config.num_classes) == ("lctr", 6)
    images = torch.randn(1, 3, 224, 224)
    for got, expected in zip(loaded(images), ours(images), strict=True):
        assert torch.equal(got, expected)


def test_it_starts_from_the_weights_of_a_classifier(tmp_path, caplog):
    save_model(
        create_model("deit_tiny_patch16_224", 5, "cls", image_size=48, backbone_options=SMALL), tmp_path
    )
    model = create_model(
        "deit_tiny_patch16_224", 5, "lctr", image_size=48, backbone_options=SMALL, pretrained=tmp_path
    )
    assert (
        "its classifier head (5, 48) is dropped, the model's is (4, 5, 48, 3, 3) and starts anew"
        in caplog.text
    )
    theirs = load_model(tmp_path).backbone.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in model.backbone.state_dict().items())


@pytest.mark.parametrize("method", ["lctr", "scm"])
def test_others_start_from_its_weights(tmp_path, caplog, method):
    options = {"image_size": 48, "backbone_options": SMALL}
    save_model(create_model("deit_tiny_patch16_224", 5, "lctr", **options), tmp_path)
    theirs = load_model(tmp_path).state_dict()
    ours = create_model("deit_tiny_patch16_224", 5, method, pretrained=tmp_path, **options).state_dict()
    same = {name for name in ours if name in theirs and torch.equal(ours[name], theirs[name])}
    expected = {name for name in ours if method == "lctr" or name.startswith("backbone.")}
    assert same >= expected
    dropped = "its classifier head (4, 5, 48, 3, 3) is dropped, the model's is (5, 48, 3, 3) and starts anew"
    assert (dropped in caplog.text) == (method == "scm")
