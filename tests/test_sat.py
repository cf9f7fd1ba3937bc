"""SAT against a literal implementation: attention matrices are formed and their columns multiplied by the mask."""

import csv

import pytest
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from data_folders import write_cub
from literal_transformer import assert_equal_gradients
from torch.nn.parallel import DistributedDataParallel

from scm_fast import InputError, create_model, load_model, save_model
from scm_fast.cli import main
from scm_fast.evaluation import Strategy
from scm_fast.models.export import export_model
from scm_fast.models.methods.sat import smoothing_kernel

SMALL = {"embed_dim": 48, "depth": 5, "num_heads": 3}
AREA = 0.3


def make_model(name="deit_tiny_patch16_224", classes=5, method_options=None, **options):
    torch.manual_seed(0)
    model = create_model(
        name,
        classes,
        "sat",
        image_size=(48, 80),
        backbone_options=SMALL,
        method_options={"area": AREA, **(method_options or {})},
        **options,
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():  # far from their small initial values
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def literal(model, images, rows=None):
    """logits, the three blocks' masks, each (B, H, W); `rows` receives each block's CLS attention"""
    network, masks = model.backbone, []
    x = network._pos_embed(network.patch_embed(images))
    token = (model.spatial_token.token + model.spatial_token.position).expand(len(images), 1, -1)
    if model.method.start == "cls":
        token = token + x[:, :1]
    x = network.norm_pre(torch.cat([x, token], dim=1))
    for index, block in enumerate(network.blocks):
        y, heads = block.norm1(x), block.attn.num_heads
        qkv = F.linear(y, block.attn.qkv.weight, block.attn.qkv.bias)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        matrix = scores.softmax(-1)
        if rows is not None:
            rows.append(matrix[:, :, 0].mean(1)[:, network.num_prefix_tokens : -1].reshape(-1, 3, 5))
        if index >= len(network.blocks) - 3:
            mask = torch.sigmoid(scores[:, :, -1].mean(1))
            matrix = matrix * mask[:, None, None, :]
            masks.append(mask)
        x = x + block.ls1(block.attn.proj((matrix @ v).transpose(1, 2).flatten(2)))
        x = x + block.ls2(block.mlp(block.norm2(x)))
    x = network.norm(x)
    prefix = network.num_prefix_tokens
    patches = x[:, prefix:-1].transpose(1, 2).reshape(len(x), -1, 3, 5)
    masks = [mask[:, prefix:-1].reshape(-1, 3, 5) for mask in masks]
    return model.head(patches).mean((2, 3)), masks


def literal_terms(mask):
    end = 6 + (13 / 3) / 2
    d = torch.special.ndtr(torch.linspace(-end, end, 4, dtype=torch.float64)).diff()
    kernel = torch.sqrt(torch.outer(d, d))
    kernel = kernel / kernel.sum()
    padded = F.pad(mask, (1, 1, 1, 1))
    smooth = sum(
        kernel[i, j] * padded[:, i : i + mask.shape[1], j : j + mask.shape[2]]
        for i in range(3)
        for j in range(3)
    )
    return {"area": abs(mask.mean() - AREA), "binarisation": (smooth * (1 - smooth)).mean()}


@pytest.mark.parametrize("start", ["random", "cls"])
@pytest.mark.parametrize(
    "name",
    [
        "deit_tiny_patch16_224",
        "deit_tiny_distilled_patch16_224",
        "vit_small_patch16_224.dino",
        "vit_base_patch16_clip_224",
        "deit3_small_patch16_224",
    ],
)
def test_sat_equals_the_literal_network(name, start):
    model = make_model(name, method_options={"start": start})
    images, labels = torch.randn(3, 3, 48, 80, dtype=torch.float64), torch.tensor([0, 3, 4])
    got = model.train()(images)
    loss = F.cross_entropy(got.logits, labels) + sum(got.terms.values())
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)

    logits, masks = literal(model, images)
    mask = sum(masks) / 3
    terms = literal_terms(mask)
    loss = F.cross_entropy(logits, labels) + sum(terms.values())
    expected = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)

    exactly = {"rtol": 1e-8, "atol": 1e-10}
    torch.testing.assert_close(got.logits, logits, **exactly)
    assert got.terms.keys() == terms.keys()
    for term, value in terms.items():
        torch.testing.assert_close(got.terms[term], value, **exactly)
    assert_equal_gradients(model, found, expected, **exactly)
    localization = model.eval()(images)
    torch.testing.assert_close(localization.attention, mask, **exactly)
    torch.testing.assert_close(localization.logits, logits, **exactly)
    assert torch.equal(localization.activation_map(labels), localization.attention)  # whatever the class


def test_a_token_that_starts_as_the_cls_token():
    """SAT's mask before learning is that of the CLS token's own query."""
    model = make_model(method_options={"start": "cls"}).eval()
    with torch.no_grad():
        model.spatial_token.token.zero_()
        model.spatial_token.position.zero_()
    queries = []
    for block in model.backbone.blocks:
        block.attn.qkv.register_forward_hook(lambda _, __, qkv: queries.append(qkv.chunk(3, -1)[0]))
    model(torch.randn(2, 3, 48, 80, dtype=torch.float64))
    for query in queries:
        torch.testing.assert_close(query[:, -1], query[:, 0], rtol=1e-10, atol=1e-12)


def test_the_product_of_the_masks_is_cut_and_their_mean_trained():
    model = make_model()
    product = make_model(method_options={"fusion": "product"})
    images = torch.randn(3, 3, 48, 80, dtype=torch.float64)
    logits, (first, second, third) = literal(model, images)
    localization = product.eval()(images)
    torch.testing.assert_close(localization.attention, first * second * third, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(localization.logits, logits, rtol=1e-8, atol=1e-10)
    got, expected = product.train()(images), model.train()(images)
    assert torch.equal(got.logits, expected.logits)
    assert all(torch.equal(got.terms[name], expected.terms[name]) for name in expected.terms)


def test_the_coupled_map_is_the_geometric_mean_of_mask_attention_and_semantic_map():
    model = make_model()
    coupled = make_model(method_options={"fusion": "coupled"}, calibration={"num_blocks": 2, "iterations": 3})
    images = torch.randn(3, 3, 48, 80, dtype=torch.float64)
    rows = []
    logits, masks = literal(coupled, images, rows)
    semantic = coupled.head(coupled.method.features(coupled.eval(), images).patches)
    classes = torch.tensor([[0, 4], [1, 1], [2, 3]])
    localization = coupled(images)
    own = torch.stack([semantic[image, row] for image, row in enumerate(classes)]).clamp(min=0)
    assert (own > 0).any()
    assert (own == 0).any()
    expected = (sum(masks).unsqueeze(1) / 3 * sum(rows).unsqueeze(1) / len(rows) * own) ** (1 / 3)
    torch.testing.assert_close(localization.activation_map(classes), expected, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(localization.logits, logits, rtol=1e-8, atol=1e-10)
    assert coupled.method.has_semantic
    assert not model.method.has_semantic
    with pytest.raises(InputError, match="strategy F1 needs semantic maps"):
        Strategy.parse("F1").check(coupled)


def test_no_attention_matrix_is_kept_in_training():
    model = make_model()
    tokens = 1 + 15 + 1
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(tuple(x.shape)) or x, lambda x: x):
        model.train()(torch.randn(2, 3, 48, 80, dtype=torch.float64))
    assert kept
    assert not [shape for shape in kept if shape[-2:] == (tokens, tokens)]


def test_checkpointing_and_compiling_change_nothing():
    model = make_model().float().train()
    images = torch.randn(2, 3, 48, 80)

    def gradients():
        model.zero_grad()
        output = model(images)
        (output.logits.square().sum() + sum(output.terms.values())).backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    expected = gradients()
    model.set_grad_checkpointing()
    torch.testing.assert_close(gradients(), expected)
    model.set_grad_checkpointing(False)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(images).terms, model(images).terms)


def test_the_token_does_not_decay():
    assert {"spatial_token.token", "spatial_token.position"} < make_model().no_weight_decay()


def test_the_calibration_takes_the_mask():
    model = make_model(calibration={"num_blocks": 2, "iterations": 3}).train()
    images = torch.randn(2, 3, 48, 80, dtype=torch.float64)
    mask = sum(literal(model, images)[1]) / 3
    semantic = model.head(model.method.features(model, images).patches)
    torch.testing.assert_close(model(images).logits, model.calibration(semantic, mask).logits)
    with pytest.raises(InputError, match="inference copy"):
        model.for_inference().train()


@pytest.mark.parametrize(
    "name",
    [
        "vit_small_patch16_dinov3",
        "beit_base_patch16_224",
        "eva02_small_patch14_224",
        "pit_s_224",
        "conformer_small_patch16",
    ],
)
def test_a_backbone_without_a_place_for_the_token_is_refused(name):
    with pytest.raises(InputError, match=r"method 'sat' appends a token .* Families that work: ViT, DeiT"):
        create_model(name, 5, "sat")


def test_wrong_options_are_named():
    with pytest.raises(InputError, match="method 'sat' has no option aera; it has area, fusion, start"):
        create_model("deit_tiny_patch16_224", 5, "sat", method_options={"aera": 0.3})
    with pytest.raises(InputError, match="method 'sat': area: input should be less than 1, got 2"):
        create_model("deit_tiny_patch16_224", 5, "sat", method_options={"area": 2})
    with pytest.raises(
        InputError, match="method 'sat': fusion: input should be 'mean', 'product' or 'coupled', got 'sum'"
    ):
        create_model("deit_tiny_patch16_224", 5, "sat", method_options={"fusion": "sum"})
    with pytest.raises(InputError, match="method 'tscam' has no option area; it has none"):
        create_model("deit_tiny_patch16_224", 5, "tscam", method_options={"area": 0.3})
    with pytest.raises(InputError, match="masks 3 blocks"):
        create_model("deit_tiny_patch16_224", 5, "sat", backbone_options={"depth": 2})


def test_a_model_comes_back_from_its_folder(tmp_path, caplog):
    model = make_model().float().eval()
    images = torch.randn(1, 3, 48, 80)
    loaded = load_model(save_model(model, tmp_path))
    assert torch.equal(loaded(images).attention, model(images).attention)
    assert loaded.method.area == AREA
    # Its backbone is another method's to start from.
    other = create_model(
        "deit_tiny_patch16_224", 5, "tscam", tmp_path, image_size=(48, 80), backbone_options=SMALL
    )
    assert torch.equal(other.backbone.pos_embed, model.backbone.pos_embed)
    assert torch.equal(other.head.weight, model.head.weight)
    assert "its spatial_token (1, 1, 48) is dropped, the model has none" in caplog.text
    again = create_model(
        "deit_tiny_patch16_224", 5, "sat", tmp_path, image_size=(48, 80), backbone_options=SMALL
    )
    assert torch.equal(again.eval()(images).attention, model(images).attention)


def test_a_published_file_is_read(tmp_path):
    torch.manual_seed(0)
    ours = create_model("deit_tiny_patch16_224", 6, "sat", preset="official").eval()
    names = {"spatial_token.token": "loc_token", "spatial_token.position": "loc_embed"}
    state = {
        f"module.{names.get(name, name.removeprefix('backbone.'))}": value
        for name, value in ours.state_dict().items()
    }
    state["module.weight"] = smoothing_kernel(torch.zeros(()))
    torch.save({"model": state, "best_thr": 0.35, "epoch": 29}, tmp_path / "sat.pth")
    loaded = load_model(tmp_path / "sat.pth")
    assert (loaded.config.method, loaded.config.num_classes) == ("sat", 6)
    images = torch.randn(1, 3, 224, 224)
    for got, expected in zip(loaded(images), ours(images), strict=True):
        assert (got is None and expected is None) or torch.equal(got, expected)
    del state["module.loc_embed"]
    torch.save({"model": state}, tmp_path / "broken.pth")
    with pytest.raises(InputError, match=r"1 missing in the file: spatial_token\.position"):
        load_model(tmp_path / "broken.pth")


def loss_of(output, labels):
    return F.cross_entropy(output.logits, labels) + sum(output.terms.values())


def parallel_case():
    # Half of the images are flat, so that the area asked for is between those of the two halves' masks.
    images = torch.randn(4, 3, 48, 80, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    images[2:] *= 0.01
    return make_model(method_options={"area": 0.5195}).train(), images, torch.tensor([0, 1, 2, 3])


def parallel_worker(rank, world, address, found):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    model, images, labels = parallel_case()
    parallel = DistributedDataParallel(model)  # kept: without it, gradients would not be exchanged
    output = parallel(images.chunk(world)[rank])
    loss_of(output, labels.chunk(world)[rank]).backward()
    if rank == 0:
        found["area"] = output.terms["area"].item()
        found.update({name: p.grad.numpy() for name, p in model.named_parameters()})
    torch.distributed.destroy_process_group()


def test_the_area_is_that_of_the_images_of_all_processes(tmp_path):
    with mp.Manager() as manager:
        shared = manager.dict()
        mp.spawn(parallel_worker, (2, f"file://{tmp_path}/store", shared), nprocs=2)
        found = dict(shared)
    model, images, labels = parallel_case()
    output = model(images)
    loss_of(output, labels).backward()
    assert found.pop("area") == pytest.approx(output.terms["area"].item(), rel=1e-12)
    halves = [model(half).terms["area"].item() for half in images.chunk(2)]
    assert abs(sum(halves) / 2 - output.terms["area"].item()) > 1e-4  # each for itself would be another loss
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(torch.from_numpy(found[name]), parameter.grad, msg=name)


def test_training_logs_every_term(tmp_path):
    options = {
        "method": "sat",
        "method-options": "{area: 0.3}",
        "backbone": "vit_tiny_patch16_224",
        "backbone-options": "{patch_size: 16, embed_dim: 32, depth: 3, num_heads: 2}",
        "pretrained": "false",
        "image-size": "32",
        "epochs": "1",
        "warmup-epochs": "0",
        "global-batch": "8",
        "micro-batch": "3",
        "workers": "0",
        "device": "cpu",
        "report": "false",
        "data": str(write_cub(tmp_path / "CUB")),
        "out": str(tmp_path / "run"),
    }
    assert main(["train", *(word for name, value in options.items() for word in (f"--{name}", value))]) == 0
    steps = list(csv.DictReader((tmp_path / "run" / "steps.csv").open()))
    terms = ["loss_classification", "loss_area", "loss_binarisation"]
    for step in steps:
        assert sum(float(step[term]) for term in terms) == pytest.approx(float(step["loss"]), rel=1e-5)
    epoch = next(csv.DictReader((tmp_path / "run" / "log.csv").open()))
    for name in ("loss", *terms):
        mean = sum(float(step[name]) for step in steps) / len(steps)
        assert float(epoch[f"train_{name}"]) == pytest.approx(mean, rel=1e-5)
    assert load_model(tmp_path / "run" / "last").method.area == 0.3


def test_an_exported_file_has_the_mask(tmp_path):
    model = make_model().float().eval()
    assert export_model(model, tmp_path / "sat.pt2") < 1e-5
    images = torch.randn(3, 3, 48, 80)
    outputs = torch.export.load(tmp_path / "sat.pt2").module()(images)
    assert outputs.keys() == {"logits", "attention"}
    torch.testing.assert_close(outputs["attention"], model(images).attention)
