"""Images cut into tiles: nothing is lost or moved, and the map is that of the whole and of its tiles."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from scm_fast import InputError, Localizer, create_model
from scm_fast.evaluation import Predictor
from scm_fast.evaluation.predictor import join_tiles, split_tiles

SMALL = {"patch_size": 16, "embed_dim": 32, "depth": 3, "num_heads": 2}


def make_model(method="tscam"):
    torch.manual_seed(0)
    model = create_model("vit_tiny_patch16_224", 3, method, image_size=64, backbone_options=SMALL)
    return model.eval()


def test_tiles_are_cut_row_by_row_and_joined_again():
    images = torch.arange(2 * 3 * 4 * 9.0).view(2, 3, 4, 9)
    parts = split_tiles(images, (2, 3))
    assert parts.shape == (12, 3, 2, 3)
    assert torch.equal(parts[1], images[0, :, :2, 3:6])
    assert torch.equal(parts[3], images[0, :, 2:, :3])
    assert torch.equal(parts[6], images[1, :, :2, :3])
    assert torch.equal(join_tiles(parts, (2, 3)), images)


@pytest.mark.parametrize("method", ["tscam", "sat"])
@pytest.mark.parametrize("tiles", [(2, 2), (1, 3)])
def test_the_map_is_the_geometric_mean_of_the_whole_and_its_tiles(method, tiles):
    model = make_model(method)
    predictor = Predictor(model, torch.device("cpu"), tiles=tiles)
    size = predictor.preprocessing.size
    assert size == (64 * tiles[0], 64 * tiles[1])
    images = torch.randn(2, 3, *size)
    classes = torch.tensor([[0, 2], [1, 1]])
    localization, maps = predictor(images, lambda logits: classes)
    whole_images = F.interpolate(images, [64, 64], mode="bilinear", antialias=True)
    with torch.inference_mode():
        whole = model(whole_images)
        assert torch.allclose(localization.logits, whole.logits, atol=1e-5)
        for row in range(tiles[0]):
            for column in range(tiles[1]):
                tile = images[:, :, 64 * row : 64 * row + 64, 64 * column : 64 * column + 64]
                fine = model(tile).activation_map(classes).clamp(min=0)
                place = (..., slice(4 * row, 4 * row + 4), slice(4 * column, 4 * column + 4))
                grid = (4 * tiles[0], 4 * tiles[1])
                coarse = F.interpolate(whole.activation_map(classes), grid, mode="bicubic").clamp(min=0)
                assert torch.allclose(maps[place], (fine * coarse[place]).sqrt(), atol=1e-5)


def test_one_tile_is_the_image_and_too_many_are_refused():
    model, images = make_model(), np.random.default_rng(0).integers(0, 256, (3, 80, 90, 3), dtype=np.uint8)
    plain, one = Localizer(model, "cpu"), Localizer(model, "cpu", tiles=(1, 1))
    assert [p.box for p in plain.predict(images)] == [p.box for p in one.predict(images)]
    assert [p.box for p in plain.predict(images)] != [
        p.box for p in Localizer(model, "cpu", tiles=(2, 2)).predict(images)
    ]
    for tiles in ((0, 2), (9, 1)):
        with pytest.raises(InputError, match="tiles must be 1x1 to 8x8"):
            Localizer(model, "cpu", tiles=tiles)


def test_the_threshold_of_the_whole_image_is_not_taken_for_tiles():
    predictor = Predictor(make_model("sat"), torch.device("cpu"), tiles=(2, 2))
    assert predictor.prescribed_threshold is None
    assert predictor.map_name == "of method sat, 2x2 tiles"
