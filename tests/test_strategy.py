"""Strategies against the maps that the calibration module's reference gives block by block."""

import pytest
import torch

import scm_fast
from scm_fast.evaluation.predictor import DEFAULT, Strategy


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return scm_fast.create_model(
        "deit_tiny_patch16_224", num_classes=5, method="scm", pretrained=False, image_size=(48, 64)
    ).eval()


@pytest.fixture(scope="module")
def localization(model):
    with torch.no_grad():
        return model(torch.randn(2, 3, 48, 64, generator=torch.Generator().manual_seed(1)))


CLASSES = torch.tensor([[0, 4, 4], [2, 1, 0]])


def test_the_default_is_the_models_own_map(model, localization):
    maps = Strategy.parse(DEFAULT).maps(model, localization, CLASSES)
    assert torch.equal(maps, localization.activation_map(CLASSES))
    assert maps.shape == (2, 3, 3, 4)


@pytest.mark.parametrize("text", ["F4*S4", "S4", "F0", "F0*S2", "S0*F3", "F1,3*S0,4", "F0,4*S4"])
def test_maps_are_products_of_means_over_blocks(model, localization, text):
    maps = Strategy.parse(text).maps(model, localization, CLASSES)
    with torch.no_grad():
        trace = model.calibration.trace(localization.semantic, localization.attention)
    factors = {factor[0]: [int(n) for n in factor[1:].split(",")] for factor in text.split("*")}
    for image in range(2):
        attention = [localization.attention[image], *(f[image] for f in trace.attention)]
        if len(factors.get("F", [])) > 1:
            attention[0] = (attention[0] - attention[0].min()) / (attention[0].max() - attention[0].min())
        for column, label in enumerate(CLASSES[image].tolist()):
            semantic = [localization.semantic[image, label], *(s[image, label] for s in trace.semantic)]
            expected = torch.ones(3, 4)
            if "F" in factors:
                expected = expected * sum(attention[b] for b in factors["F"]) / len(factors["F"])
            if "S" in factors:
                expected = expected * sum(semantic[b] for b in factors["S"]) / len(factors["S"])
            torch.testing.assert_close(maps[image, column], expected)


@pytest.mark.parametrize("text", ["", "F", "S-1", "F0+S0", "F0*F1", "f0*s0", "F0*S0*S1", "F0,*S0"])
def test_what_is_no_strategy_is_refused(text):
    with pytest.raises(scm_fast.InputError, match="expected such as F0"):
        Strategy.parse(text)


def test_a_classifier_has_attention_and_no_semantic_map():
    model = scm_fast.create_model("deit_tiny_patch16_224", 5, "cls", image_size=(48, 64)).eval()
    with torch.no_grad():
        localization = model(torch.randn(2, 3, 48, 64))
    strategy = Strategy.parse("F0")
    strategy.check(model)
    expected = localization.attention.unsqueeze(1).expand(2, 3, 3, 4)
    assert torch.equal(strategy.maps(model, localization, CLASSES), expected)
    Strategy.parse(DEFAULT).check(model)
    with pytest.raises(scm_fast.InputError, match="method 'cls' has none"):
        Strategy.parse("S0").check(model)


def test_a_mask_that_was_calibrated_has_no_maps_of_blocks():
    model = scm_fast.create_model(
        "deit_tiny_patch16_224", 5, "sat", image_size=(48, 64), calibration={"num_blocks": 4}
    )
    Strategy.parse("F0").check(model)
    with pytest.raises(
        scm_fast.InputError, match=r"strategy F4 needs semantic maps, .* method 'sat' has none"
    ):
        Strategy.parse("F4").check(model)


def test_blocks_that_the_model_lacks_are_refused(model):
    Strategy.parse("F4*S0").check(model)
    with pytest.raises(scm_fast.InputError, match="block 5, but the checkpoint has 4"):
        Strategy.parse("F5*S0").check(model)
    with pytest.raises(scm_fast.InputError, match="saved for inference"):
        Strategy.parse("F1*S0").check(model.for_inference())


@pytest.mark.parametrize(("text", "written"), [(" S0 * F3,1", "F1,3*S0"), ("S4", "S4"), (DEFAULT, DEFAULT)])
def test_it_is_written_as_it_can_be_read(text, written):
    assert str(Strategy.parse(text)) == written
