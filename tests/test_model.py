"""The localisation model against a literal network: every matrix formed, nothing fused."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torchvision.transforms import functional as transforms

from scm_fast import InputError, Localization, create_model, reference
from scm_fast.models import load_model, save_model

DATA = os.environ.get("SCM_FAST_DATA")
needs_data = pytest.mark.skipif(
    not DATA, reason="SCM_FAST_DATA is not set: the folder with weights and CUB images"
)
SMALL = {"depth": 2, "embed_dim": 48, "num_heads": 3}


def imagenet_weights() -> Path:
    return Path(DATA) / "weights/deit_tiny_patch16_224.safetensors"


def literal_deit(weights, images, heads, patch):
    """DeiT by its equations: normalised tokens (B, N, D), and every attention matrix (B, heads, N, N)."""
    B, _, height, width = images.shape
    patches = images.reshape(B, 3, height // patch, patch, width // patch, patch).permute(0, 2, 4, 1, 3, 5)
    x = patches.flatten(3).flatten(1, 2) @ weights["patch_embed.proj.weight"].flatten(1).T
    x = torch.cat([weights["cls_token"].expand(B, -1, -1), x + weights["patch_embed.proj.bias"]], 1)
    x = x + weights["pos_embed"]
    matrices = []

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        return centred / (variance + 1e-6).sqrt() * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    for block in range(sum(name.endswith("norm1.weight") for name in weights)):
        prefix = f"blocks.{block}"
        qkv = linear(norm(x, f"{prefix}.norm1"), f"{prefix}.attn.qkv")
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
        attention = torch.exp(q @ k.mT / q.shape[-1] ** 0.5)
        attention = attention / attention.sum(-1, keepdim=True)
        matrices.append(attention)
        x = x + linear((attention @ v).transpose(1, 2).flatten(2), f"{prefix}.attn.proj")
        hidden = linear(norm(x, f"{prefix}.norm2"), f"{prefix}.mlp.fc1")
        hidden = hidden * (1 + torch.erf(hidden / 2**0.5)) / 2
        x = x + linear(hidden, f"{prefix}.mlp.fc2")
    return norm(x, "norm"), matrices


def literal_scm(weights, images, heads, patch, iterations, detach_init, alpha=0.002):
    """Logits in training, F0 and S0 of an SCM model with the weights of its state dict."""
    backbone = {
        name.removeprefix("backbone."): w for name, w in weights.items() if name.startswith("backbone.")
    }
    tokens, matrices = literal_deit(backbone, images, heads, patch)
    grid = images.shape[-2] // patch, images.shape[-1] // patch
    F0 = torch.stack(matrices).mean((0, 2))[:, 0, 1:].unflatten(1, grid)
    padded = F.pad(tokens[:, 1:].transpose(1, 2).unflatten(2, grid), (1, 1, 1, 1))
    S0 = weights["head.bias"].view(1, -1, 1, 1)
    for i in range(3):
        for j in range(3):
            shifted = padded[:, :, i : i + grid[0], j : j + grid[1]]
            S0 = S0 + torch.einsum("bdhw,cd->bchw", shifted, weights["head.weight"][:, :, i, j])
    calibration = weights["calibration.lam"], weights["calibration.beta"]
    logits = reference.spatial_calibration(S0, F0, *calibration, iterations, alpha, detach_init)[0]
    return logits, F0, S0


@pytest.mark.parametrize("pretrained", ["random", pytest.param("imagenet", marks=needs_data)])
@pytest.mark.parametrize("preset", ["paper", "official"])
@pytest.mark.parametrize(
    ("dtype", "value", "gradient"), [(torch.float64, 1e-10, 1e-8), (torch.float32, 1e-5, 2e-4)]
)
def test_deit_tiny_with_scm_equals_the_literal_network(preset, dtype, value, gradient, pretrained):
    """The literal one in float64: in float32 its own rounding is larger than that of the model."""
    torch.manual_seed(0)
    weights_file = imagenet_weights() if pretrained == "imagenet" else False
    model = create_model("deit_tiny_patch16_224", 20, "scm", weights_file, preset=preset).to(dtype)
    images = torch.randn(2, 3, 224, 224, dtype=dtype)
    labels = torch.tensor([3, 11])
    weights = {name: w.detach().double().requires_grad_() for name, w in model.state_dict().items()}
    iterations = model.calibration.settings.iterations

    logits, F0, S0 = literal_scm(weights, images.double(), 3, 16, iterations, preset == "official")
    F.cross_entropy(logits, labels).backward()
    got = model.train()(images).logits
    F.cross_entropy(got, labels).backward()
    evaluated = model.eval()(images)

    def error(ours, expected):
        scale = expected.abs().max()
        assert scale > 0
        return ((ours.double() - expected).abs().max() / scale).item()

    assert error(got, logits) < value
    assert error(evaluated.attention, F0) < value
    assert error(evaluated.semantic, S0) < value
    assert error(evaluated.logits, S0.mean((2, 3))) < value
    for name, parameter in model.named_parameters():
        found = error(parameter.grad, weights[name].grad)
        # Min-max removes beta's scale: its gradient is what is left of terms that nearly cancel.
        allowed = 100 * gradient if name == "calibration.beta" else gradient
        assert found < allowed, f"{name}: {found:.1e}"


def test_methods_share_the_network():
    torch.manual_seed(0)
    images = torch.randn(2, 3, 64, 96)
    scm = create_model("deit_tiny_patch16_224", 7, "scm", image_size=(64, 96), backbone_options=SMALL)
    tscam = create_model("deit_tiny_patch16_224", 7, "tscam", image_size=(64, 96), backbone_options=SMALL)
    assert scm.state_dict().keys() - tscam.state_dict().keys() == {"calibration.lam", "calibration.beta"}
    tscam.load_state_dict({k: v for k, v in scm.state_dict().items() if not k.startswith("calibration.")})
    for ours, theirs in zip(scm.eval()(images), tscam.eval()(images), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    # TS-CAM trains the pooled semantic map; SCM trains the calibrated one.
    torch.testing.assert_close(tscam.train()(images).logits, scm.eval()(images).logits)
    assert not torch.allclose(scm.train()(images).logits, tscam.train()(images).logits)


def test_cls_method_is_a_linear_head_on_the_cls_token():
    model = create_model("deit_tiny_patch16_224", 7, "cls", image_size=64, backbone_options=SMALL)
    images = torch.randn(2, 3, 64, 64)
    tokens = model.backbone.forward_features(images)
    torch.testing.assert_close(
        model.train()(images).logits, F.linear(tokens[:, 0], model.head.weight, model.head.bias)
    )
    localization = model.eval()(images)
    assert localization.semantic is None
    torch.testing.assert_close(localization.activation_map(torch.tensor([1, 2])), localization.attention)


def test_head_initialisation_by_preset():
    torch.manual_seed(0)
    paper = create_model("deit_tiny_patch16_224", 50, image_size=32).head
    official = create_model("deit_tiny_patch16_224", 50, image_size=32, preset="official").head
    he = (2 / (9 * 192)) ** 0.5
    assert abs(paper.weight.std().item() / he - 1) < 0.02
    assert (paper.bias == 0).all()
    bound = (1 / (9 * 192)) ** 0.5  # PyTorch: uniform in +- 1 / sqrt(fan in)
    assert official.weight.abs().max().item() <= bound
    assert abs(official.weight.std().item() / (bound / 3**0.5) - 1) < 0.02
    assert (official.bias != 0).any()


def test_calibration_follows_preset_and_overrides():
    paper = create_model("deit_tiny_patch16_224", 5, image_size=32, backbone_options=SMALL).calibration
    assert (paper.settings.iterations, paper.settings.detach_init) == ((4, 4, 4, 4), False)
    official = create_model("deit_tiny_patch16_224", 5, preset="official", backbone_options=SMALL).calibration
    assert (official.settings.iterations, official.settings.detach_init) == ((16, 4, 4, 4), True)
    changed = create_model(
        "deit_tiny_patch16_224",
        5,
        calibration={"num_blocks": 2, "iterations": 3, "alpha": 0.01, "backend": "reference"},
        backbone_options=SMALL,
    ).calibration
    assert changed.settings == ((3, 3), 0.01, False, "auto", "reference")


def test_activation_map_is_attention_times_the_semantic_map_of_the_class():
    generator = torch.Generator().manual_seed(0)
    logits, attention, semantic, tokens = (
        torch.rand(s, generator=generator) for s in [(3, 5), (3, 2, 4), (3, 5, 2, 4), (3, 6, 2, 4)]
    )
    localization = Localization(logits, attention, semantic, tokens)
    truth = torch.tensor([4, 0, 2])
    maps = localization.activation_map(truth)
    assert maps.shape == (3, 2, 4)
    for image, label in enumerate(truth):
        torch.testing.assert_close(maps[image], attention[image] * semantic[image, label])
    top = logits.topk(3).indices
    maps = localization.activation_map(top)
    assert maps.shape == (3, 3, 2, 4)
    for image in range(3):
        for rank in range(3):
            torch.testing.assert_close(
                maps[image, rank], attention[image] * semantic[image, top[image, rank]]
            )
    torch.testing.assert_close(localization.activation_map(), maps[:, 0])
    with pytest.raises(InputError, match=r"\(3,\) or \(3, k\), got \(2,\)"):
        localization.activation_map(torch.tensor([0, 1]))


@pytest.mark.parametrize("method", ["scm", "tscam", "cls"])
def test_inference_copy_equals_evaluation_mode(method):
    model = create_model("deit_tiny_patch16_224", 7, method, image_size=64, backbone_options=SMALL)
    images = torch.randn(3, 3, 64, 64)
    plain = model.for_inference()
    assert model.training
    assert not plain.training
    assert not any(name.startswith("calibration") for name, _ in plain.named_parameters())
    expected = model.eval()(images)
    for ours, theirs in zip(plain(images), expected, strict=True):
        assert (ours is None and theirs is None) or torch.equal(ours, theirs)
    with torch.no_grad():
        model.head.weight.add_(1)
    assert torch.equal(plain(images).logits, expected.logits)  # a copy, not a view
    if method == "scm":
        with pytest.raises(InputError, match="inference copy"):
            plain.train()


@pytest.mark.parametrize(
    "name", ["deit_tiny_patch16_224", "vit_small_patch16_dinov3", "beit_base_patch16_224"]
)
def test_exports_with_a_dynamic_batch(name):
    model = create_model(name, 7, image_size=64, backbone_options=SMALL).for_inference()
    batch = {0: torch.export.Dim("batch", min=1, max=2**30)}
    images = torch.randn(2, 3, 64, 64)
    program = torch.export.export(model, (images,), dynamic_shapes=(batch,), strict=False)
    for size in (1, 5):
        images = torch.randn(size, 3, 64, 64)
        for ours, theirs in zip(program.module()(images), model(images), strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.one_graph
def test_training_and_inference_compile_without_a_graph_break():
    torch._dynamo.reset()
    model = create_model("deit_tiny_patch16_224", 7, image_size=64, backbone_options=SMALL).train()
    images = torch.randn(2, 3, 64, 64)
    expected = model(images)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), expected)
    F.cross_entropy(compiled(images).logits, torch.tensor([1, 2])).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    plain = model.for_inference()
    got, expected = torch.compile(plain, backend="aot_eager", fullgraph=True)(images), plain(images)
    assert isinstance(got, Localization)
    torch.testing.assert_close(got, expected)


def test_deep_copies_are_independent():
    model = create_model("deit_tiny_patch16_224", 7, image_size=64, backbone_options=SMALL).eval()
    twin = copy.deepcopy(model)
    images = torch.randn(1, 3, 64, 64)
    expected = model(images)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    assert torch.equal(twin(images).attention, expected.attention)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"method": "cam"}, "method must be one of cls, lctr, sat, scm, tscam"),
    ({"preset": "mine"}, "preset must be one of paper, official"),
    ({"num_classes": 0}, "num_classes must be a positive integer"),
    ({"class_names": ["a"]}, "class_names must have 5 entries"),
    ({"calibration": {"method": "dense"}}, "the calibration has no method; it has num_blocks"),
    ({"calibration": {"detach_init": 1}}, "detach_init must be true or false, got 1"),
    ({"calibration": "dense"}, "calibration must be a mapping of keywords"),
    ({"method": "tscam", "calibration": {"iterations": 3}}, "method 'tscam' has no calibration, so iterations"),
    ({"backbone": "conformer_small_patch16", "pretrained": True}, "not on timm's hub"),
    ({"backbone_options": {"num_heads": 5}}, "does not accept these options: dim should be divisible"),
])  # fmt: skip
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        create_model(**{"backbone": "deit_tiny_patch16_224", "num_classes": 5, **arguments})


def test_import_is_light():
    code = "import scm_fast, sys; print({'timm', 'cv2', 'torchvision'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def cub_images(folder, count=None):
    files = sorted((Path(DATA) / "CUB_200_2011/images" / folder).glob("*.jpg"))[:count]
    assert files
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    pixels = [transforms.to_tensor(Image.open(f).convert("RGB").resize((224, 224), 2)) for f in files]
    return transforms.normalize(torch.stack(pixels), mean, std)


@needs_data
@pytest.mark.parametrize(("folder", "label"), [("014.Indigo_Bunting", 14), ("048.European_Goldfinch", 11)])
def test_imagenet_weights_know_the_birds(folder, label):
    model = create_model("deit_tiny_patch16_224", 1000, "cls", pretrained=imagenet_weights()).eval()
    with torch.inference_mode():
        predicted = model(cub_images(folder)).logits.argmax(1)
    assert (predicted == label).float().mean() > 0.5


@needs_data
def test_a_checkpoint_of_a_real_model_predicts_the_same(tmp_path):
    model = create_model("deit_tiny_patch16_224", 200, pretrained=imagenet_weights())
    images = cub_images("014.Indigo_Bunting", 2)
    loaded = load_model(save_model(model, tmp_path / "checkpoint"))
    for ours, theirs in zip(loaded(images), model.eval()(images), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (torch.tensor([0, 7]), r"classes must be in 0 ... 6, got 7"),
        (torch.tensor([[0, 1], [-1, 2]]), r"classes must be in 0 ... 6, got -1"),
        (torch.tensor([0.0, 1.0]), r"classes must be integers, got torch.float32"),
        (torch.tensor([0, 1, 2]), r"classes must have shape \(2,\) or \(2, k\), got \(3,\)"),
        ([0, 1], "classes must be a tensor of integers, got list"),
    ],
    ids=["too large", "negative", "floats", "wrong batch", "list"],
)
def test_wrong_classes_are_named(classes, message):
    localization = Localization(
        torch.zeros(2, 7), torch.rand(2, 4, 4), torch.rand(2, 7, 4, 4), torch.rand(2, 3, 4, 4)
    )
    with pytest.raises(InputError, match=message):
        localization.activation_map(classes)


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "conformer_tiny_patch16"])
def test_an_image_size_with_part_of_a_patch_is_refused(name):
    with pytest.raises(
        InputError, match=r"image_size is 230 x 224: both must be multiples of 16.* 240 x 224"
    ):
        create_model(name, 7, image_size=(230, 224))


@pytest.mark.parametrize(
    ("name", "options", "images", "message"),
    [
        ("deit_tiny_patch16_224", {}, torch.rand(2, 3, 32, 48), "images are 32 x 48, but this model takes 64 x 64"),
        ("deit_tiny_patch16_224", {}, torch.rand(3, 64, 64), r"\(B, 3, height, width\), got .* \(3, 64, 64\)"),
        ("deit_tiny_patch16_224", {}, torch.rand(2, 1, 64, 64), r"got torch.float32 \(2, 1, 64, 64\)"),
        ("deit_tiny_patch16_224", {}, torch.zeros(2, 3, 64, 64, dtype=torch.uint8), "got torch.uint8"),
        ("deit_tiny_patch16_224", {"dynamic_img_size": True}, torch.rand(1, 3, 64, 40), "multiples of 16"),
        ("conformer_tiny_patch16", {}, torch.rand(1, 3, 64, 40), "images are 64 x 40: both must be multiples"),
    ],
    ids=["size", "no batch", "grey", "uint8", "dynamic", "conformer"],
)  # fmt: skip
def test_wrong_images_are_named(name, options, images, message):
    small = {} if name.startswith("conformer") else SMALL
    size = {} if name.startswith("conformer") else {"image_size": 64}
    model = create_model(name, 7, backbone_options={**small, **options}, **size).eval()
    with pytest.raises(InputError, match=message):
        model(images)


def test_offline_without_cached_weights_is_said_quickly(tmp_path):
    """The hub's own client would try again for a minute, a line at a time."""
    code = (
        "import time, scm_fast\nbegin = time.perf_counter()\n"
        "try: scm_fast.create_model('deit_tiny_patch16_224', 3, pretrained=True)\n"
        "except scm_fast.InputError as error: print(f'{time.perf_counter() - begin:.1f} {error}')"
    )
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}  # the port of nobody
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | nowhere, capture_output=True, text=True, timeout=240
    )
    seconds, message = done.stdout.split(" ", 1)
    assert float(seconds) < 10
    assert message.startswith("the weights of 'deit_tiny_patch16_224' could not be had from timm's hub (")
    assert message.endswith("pretrained=FILE\n")
    assert message.count("\n") == 1
    assert done.stderr == ""
