"""Options for a faster or better training: learning rates by layer, frozen blocks, averages, small images."""

import copy

import pytest
import torch
import torch.nn.functional as F
from data_folders import write_cub
from measure import CpuMeter, Task
from safetensors.torch import load_file
from training_runs import CONFIG

from scm_fast import InputError, create_model, load_model
from scm_fast.models.layers import freeze_blocks, parameter_layers
from scm_fast.training import Trainer, make_config
from scm_fast.training.average import WARMUP
from scm_fast.training.optimization import build_optimizer
from scm_fast.training.pretraining import pretraining_config

CPU = torch.device("cpu")
BACKBONE = {"patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 2}
TINY = CONFIG | {"backbone_options": BACKBONE, "checkpoint_steps": 500}


@pytest.fixture(scope="module")
def cub(tmp_path_factory) -> str:
    return str(write_cub(tmp_path_factory.mktemp("data") / "CUB"))


@pytest.fixture
def trainer(tmp_path, cub):
    """A run with these options, in a folder of its own or in that of another one."""

    def make(name: str = "run", **options) -> Trainer:
        return Trainer(
            make_config({**TINY, "data": cub, "out": str(tmp_path / name), **options}, "test"), CPU
        )

    return make


def model_of(method: str = "scm"):
    torch.manual_seed(0)
    return create_model("vit_tiny_patch16_224", 3, method, image_size=32, backbone_options=BACKBONE)


def rates(model, **options) -> dict[str, float]:
    """The highest learning rate of every parameter that is trained."""
    config = make_config({"lr": 1e-3, **options}, "test")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = build_optimizer(model, config).param_groups
    return {names[id(parameter)]: group["lr"] for group in groups for parameter in group["params"]}


class TestRates:
    def test_the_head_has_a_rate_of_its_own(self):
        found = rates(model_of("sat"), head_lr=0.1)
        own = {name for name, rate in found.items() if rate == 0.1}
        assert own == {"head.weight", "head.bias", "spatial_token.token", "spatial_token.position"}
        assert {rate for name, rate in found.items() if name not in own} == {1e-3}

    def test_the_calibration_keeps_the_backbones(self):
        found = rates(model_of("scm"), head_lr=0.1)
        assert found["calibration.lam"] == found["calibration.beta"] == 1e-3

    def test_layers_below_learn_more_slowly(self):
        found = rates(model_of(), layer_decay=0.5)
        expected = {
            "head.weight": 1,
            "calibration.lam": 1,
            "backbone.norm.weight": 1,
            "backbone.blocks.2.mlp.fc1.weight": 1,
            "backbone.blocks.1.mlp.fc1.weight": 1 / 2,
            "backbone.blocks.0.attn.qkv.weight": 1 / 4,
            "backbone.patch_embed.proj.weight": 1 / 8,
            "backbone.cls_token": 1 / 8,
        }
        assert {name: found[name] for name in expected} == pytest.approx(
            {name: 1e-3 * share for name, share in expected.items()}
        )

    def test_the_logged_rate_is_lr(self, trainer):
        run = trainer(head_lr=0.1, layer_decay=0.5)
        assert run.scheduler.get_last_lr()[0] == 1e-3


class TestFrozenBlocks:
    def test_only_the_others_change(self, trainer):
        run = trainer(frozen_blocks=2, epochs=1)
        before = copy.deepcopy(run.model.state_dict())
        run.fit()
        layers = parameter_layers(run.model)
        for name, value in run.model.state_dict().items():
            frozen = layers.get(name, 9) <= 2
            assert torch.equal(value, before[name]) == frozen, name

    def test_no_gradient_is_computed_for_them(self):
        model = model_of().train()
        freeze_blocks(model, 1)
        entered = []
        model.backbone.blocks[0].register_full_backward_hook(lambda *_: entered.append(0))
        model.backbone.blocks[2].register_full_backward_hook(lambda *_: entered.append(2))
        model(torch.randn(2, 3, 32, 32)).logits.sum().backward()
        assert entered == [2]

    def test_with_a_token_of_sat_their_own_gradients_are_spared(self):
        model = model_of("sat").train()
        freeze_blocks(model, 1)
        model(torch.randn(2, 3, 32, 32)).logits.sum().backward()
        assert all(parameter.grad is None for parameter in model.backbone.blocks[0].parameters())
        assert model.spatial_token.token.grad is not None

    @pytest.mark.parametrize("name", ["vit_base_patch16_clip_224", "beit_base_patch16_224"])
    def test_norms_belong_where_they_are(self, name):
        layers = parameter_layers(create_model(name, 3, "tscam", backbone_options={"depth": 3}))
        own = {name.removeprefix("backbone."): layer for name, layer in layers.items()}
        assert max(own.values()) == 3
        assert own.get("norm_pre.weight", 0) == 0
        assert all(own[norm] == 3 for norm in ("norm.weight", "fc_norm.weight") if norm in own)
        assert {"norm_pre.weight", "fc_norm.weight"} & own.keys()

    def test_pretraining_trains_all_of_them(self):
        config = make_config({**TINY, "pretraining": {"epochs": 1}, "frozen_blocks": 1}, "test")
        assert pretraining_config(config).frozen_blocks is None
        assert config.frozen_blocks == 1

    def test_all_of_them(self, trainer):
        with pytest.raises(InputError, match=r"frozen_blocks: 3 of 3 blocks leaves none to train; at most 2"):
            trainer(frozen_blocks=3)

    def test_a_network_whose_layers_are_not_known(self):
        model = create_model("conformer_small_patch16", 3, "tscam")
        with pytest.raises(InputError, match=r"layers timm knows, and 'conformer_small_patch16'"):
            freeze_blocks(model, 1)


def test_label_smoothing(trainer):
    """The loss of the first step is that of smoothed labels."""
    run = trainer(label_smoothing=0.3, drop_path_rate=0.0)
    batch = next(iter(run.loader))
    logits = run.model.train()(batch.images).logits
    target = F.one_hot(batch.labels, logits.shape[1]) * 0.7 + 0.3 / logits.shape[1]
    expected = -(target * logits.log_softmax(1)).sum()
    assert run._forward_backward(batch)["loss"].item() == pytest.approx(expected.item(), rel=1e-6)


class TestAverage:
    DECAY = 0.8

    def test_it_is_what_is_kept(self, trainer):
        run = trainer(average=self.DECAY, epochs=1)
        seen = [{name: value.clone() for name, value in run.model.named_parameters()}]
        run.optimizer.register_step_post_hook(
            lambda *_: seen.append(
                {name: value.detach().clone() for name, value in run.model.named_parameters()}
            )
        )
        run.fit()
        assert len(seen) == 5
        expected = seen[0]
        for number, weights in enumerate(seen[1:], 1):
            decay = min(self.DECAY, number / (number + WARMUP))
            expected = {name: decay * expected[name] + (1 - decay) * weights[name] for name in expected}
        kept = load_file(run.folder.path / "last" / "model.safetensors")
        for name, value in expected.items():
            torch.testing.assert_close(kept[name], value, atol=1e-6, rtol=1e-5)
            assert not torch.equal(kept[name], seen[-1][name]) or name.startswith("calibration"), name
        assert load_model(run.folder.path / "last").config.threshold is not None

    def test_a_resumed_run_has_the_same_bits(self, trainer):
        options = {"average": self.DECAY, "drop_path_rate": 0.1, "checkpoint_steps": 3, "frozen_blocks": 1}
        whole = trainer("whole", **options)
        whole.fit()
        stopped = trainer("stopped", **options)
        save, saved = stopped.save, []

        def killed_after_three_steps() -> None:
            save()
            saved.append(stopped.step)
            if stopped.step >= 3:
                raise KeyboardInterrupt

        stopped.save = killed_after_three_steps  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            stopped.fit()
        assert saved == [3]
        trainer("stopped", resume="auto", **options).fit()
        for model in ("last", "best_gt_known"):
            parts = [load_file(run.folder.path / model / "model.safetensors") for run in (whole, stopped)]
            assert all(torch.equal(parts[0][name], parts[1][name]) for name in parts[0])

    def test_it_takes_the_memory_of_the_weights_and_no_more(self, trainer):
        names = iter(("without", "without again", "with"))

        def peak(average: float) -> int:
            return CpuMeter().peak_bytes(Task(lambda _: train(average)))[0]

        def train(average: float) -> None:
            trainer(next(names), average=average, epochs=1).train_epoch()

        peak(0)  # what is made once and stays
        without, with_average = peak(0), peak(self.DECAY)
        model = model_of()
        weights = sum(value.numel() * value.element_size() for value in model.state_dict().values())
        assert 0.9 * weights < with_average - without < 1.1 * weights


class TestSmallImages:
    @pytest.mark.parametrize(
        ("epochs", "small", "large"), [(1.5, 6, 2), (None, 8, 0)], ids=["first", "all the time"]
    )
    def test_the_network_is_trained_on_them(self, trainer, monkeypatch, epochs, small, large):
        run = trainer(small_size=16, small_epochs=epochs)
        trained, tested = [], set()
        forward = run.model.forward

        def recorded(images):
            size = tuple(images.shape[-2:])
            trained.append(size) if run.model.training else tested.add(size)
            return forward(images)

        monkeypatch.setattr(run.model, "forward", recorded)
        run.fit()
        assert trained == [(16, 16)] * small + [(32, 32)] * large
        assert tested == {(32, 32)}
        assert load_model(run.folder.path / "last").config.image_size == (32, 32)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"small_epochs": 1}, r"small_epochs: 1 of which size\? small_size says it"),
            ({"small_size": 32}, "small_size: 32 is not smaller than image_size 32; null trains"),
            ({"small_size": 12}, "small_size is 12 x 12: both must be multiples of 8"),
        ],
    )
    def test_mistakes(self, trainer, options, message):
        with pytest.raises(InputError, match=message):
            trainer(**options)

    def test_networks_of_one_size(self, trainer):
        backbone = "beit_base_patch16_224"
        options = {"image_size": 224, "backbone": backbone, "backbone_options": {}}
        with pytest.raises(
            InputError,
            match=f"'{backbone}' takes images of one size only: .* in training `small_size: null`",
        ):
            trainer(small_size=160, **options)

    def test_a_network_without_positions_needs_no_option(self, trainer):
        small = {"depth": 3, "embed_dim": 96, "num_heads": 3}
        options = {"image_size": 64, "backbone": "conformer_tiny_patch16", "backbone_options": small}
        run = trainer(small_size=32, epochs=1, **options)
        run.train_epoch()
        assert run.model.config.backbone_options == small


def test_a_run_that_knew_nothing_of_an_option_is_resumed(trainer):
    run = trainer()
    run.train_epoch()
    run.save()
    file = run.folder.path / "config.yaml"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not line.startswith("layer_decay")))
    assert trainer(resume="auto").step == 4
    with pytest.raises(InputError, match=r"another run: layer_decay was 1\.0 and is now 0\.5"):
        trainer(resume="auto", layer_decay=0.5)
