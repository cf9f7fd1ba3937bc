"""Reading image files: every mode becomes RGB, bad files are named."""

import numpy as np
import pytest
import torch
from PIL import Image

from scm_fast.data.images import ORIENTATION_TAG, image_size, load_image, load_tensor
from scm_fast.errors import InputError


def gradient(width=60, height=40):
    """A colour image without symmetry, so that any turn or swapped channel shows."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 255 // width, y * 255 // height, (x + y) * 255 // (width + height)], -1).astype(
        np.uint8
    )


def save(path, image, **options):
    image.save(path, **options)
    return path


def largest_difference(image, expected):
    return int(np.abs(np.asarray(image).astype(int) - np.asarray(expected).astype(int)).max())


def test_grey_png(tmp_path):
    grey = gradient()[..., 0]
    image = load_image(save(tmp_path / "grey.png", Image.fromarray(grey)))
    assert image.mode == "RGB"
    assert largest_difference(image, np.repeat(grey[..., None], 3, -1)) == 0


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_16_bit_grey_keeps_its_range(tmp_path, suffix):
    deep = np.arange(0, 65536, 32, dtype=np.uint16).reshape(32, 64)
    image = load_image(save(tmp_path / f"deep.{suffix}", Image.fromarray(deep)))
    assert image.mode == "RGB"
    assert largest_difference(image, np.repeat((deep >> 8)[..., None], 3, -1)) == 0


def test_32_bit_integer_tiff(tmp_path):
    deep = np.arange(0, 65536, 32, dtype=np.int32).reshape(32, 64)
    image = load_image(save(tmp_path / "deep.tif", Image.fromarray(deep)))
    assert largest_difference(image, np.repeat((deep >> 8)[..., None], 3, -1)) == 0


def test_palette(tmp_path):
    palette = Image.fromarray(gradient()).quantize(16)
    image = load_image(save(tmp_path / "palette.png", palette))
    assert image.mode == "RGB"
    assert largest_difference(image, palette.convert("RGB")) == 0


def test_transparent_palette_lies_on_white(tmp_path):
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((0, 0), 0)
    image = load_image(save(tmp_path / "transparent.png", palette, transparency=1))
    assert image.getpixel((0, 0)) == (10, 20, 30)
    assert image.getpixel((3, 3)) == (255, 255, 255)


def test_rgba_lies_on_white(tmp_path):
    rgba = np.dstack([gradient(), np.full((40, 60), 255, np.uint8)])
    rgba[:, :30, 3] = 0
    image = load_image(save(tmp_path / "rgba.png", Image.fromarray(rgba)))
    assert image.mode == "RGB"
    assert largest_difference(np.asarray(image)[:, 30:], gradient()[:, 30:]) == 0
    assert np.all(np.asarray(image)[:, :30] == 255)


def test_cmyk_jpeg(tmp_path):
    cmyk = Image.fromarray(gradient()).convert("CMYK")
    image = load_image(save(tmp_path / "cmyk.jpg", cmyk, quality=95))
    assert image.mode == "RGB"
    assert largest_difference(image, gradient()) < 16


def test_black_and_white(tmp_path):
    image = load_image(save(tmp_path / "bits.png", Image.fromarray(gradient()[..., 0]).convert("1")))
    assert image.mode == "RGB"
    assert set(np.unique(np.asarray(image))) == {0, 255}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(tmp_path, orientation):
    upright = gradient()
    # What a camera held that way stores: the inverse of the turn that the tag asks for.
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: upright.transpose(1, 0, 2)[::-1],
        7: upright.transpose(1, 0, 2)[::-1, ::-1],
        8: upright.transpose(1, 0, 2)[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = orientation
    path = save(
        tmp_path / "turned.jpg", Image.fromarray(np.ascontiguousarray(stored)), quality=100, exif=exif
    )
    image = load_image(path)
    assert image.size == image_size(path) == (60, 40)
    assert largest_difference(image, upright) < 24
    as_stored = load_image(path, upright=False)
    assert as_stored.size == image_size(path, upright=False) == stored.shape[1::-1]
    assert largest_difference(as_stored, stored) < 24


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (None, (800, 600)),
        ((256, 256), (400, 300)),
        ((400, 300), (400, 300)),
        ((401, 300), (800, 600)),
        ((100, 75), (100, 75)),
        ((10, 10), (100, 75)),
        ((900, 10), (800, 600)),
    ],
)
def test_scaled_decoding_is_never_below_the_target(tmp_path, target, expected):
    path = save(tmp_path / "large.jpg", Image.fromarray(gradient(800, 600)), quality=90)
    image = load_image(path, target_size=target)
    assert image.size == expected
    assert largest_difference(image, Image.fromarray(gradient(800, 600)).resize(expected, Image.BOX)) < 16


def test_scaled_decoding_of_a_sideways_image(tmp_path):
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = 6
    path = save(tmp_path / "sideways.jpg", Image.fromarray(gradient(800, 200)), exif=exif)
    # Upright it is 200 x 800: a target of 100 x 400 allows one half, and 400 x 100 nothing.
    assert load_image(path, target_size=(100, 400)).size == (100, 400)
    assert load_image(path, target_size=(400, 100)).size == (200, 800)


def test_scaled_decoding_leaves_png_alone(tmp_path):
    path = save(tmp_path / "large.png", Image.fromarray(gradient(800, 600)))
    assert load_image(path, target_size=(64, 64)).size == (800, 600)


def test_truncated_jpeg_is_named(tmp_path):
    path = save(tmp_path / "whole.jpg", Image.fromarray(gradient(300, 300)))
    cut = tmp_path / "cut.jpg"
    cut.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(InputError, match=r"cut\.jpg.*truncated"):
        load_image(cut)


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n" + bytes(40)])
def test_not_an_image_is_named(tmp_path, content):
    path = tmp_path / "broken.png"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"broken\.png: cannot read"):
        load_image(path)
    with pytest.raises(InputError, match=r"broken\.png: cannot read"):
        image_size(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nothing\.jpg: no such image file"):
        load_image(tmp_path / "nothing.jpg")
    with pytest.raises(InputError, match=r"nothing\.jpg: no such image file"):
        image_size(tmp_path / "nothing.jpg")


def test_floating_point_image_is_refused_by_name(tmp_path):
    path = save(tmp_path / "float.tif", Image.fromarray(np.zeros((4, 4), np.float32)))
    with pytest.raises(InputError, match=r"float\.tif.*floating-point"):
        load_image(path)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}], ids=str)
@pytest.mark.parametrize("size", [(61, 43), (400, 300)])
def test_tensors_have_the_pixels_of_images(tmp_path, mode, options, size):
    path = save(tmp_path / "image.jpg", Image.fromarray(gradient(*size)).convert(mode), quality=80, **options)
    for target in (None, (100, 100)):
        tensor = load_tensor(path, target_size=target)
        image = load_image(path, target_size=target)
        assert tensor.dtype == torch.uint8
        assert np.array_equal(tensor.permute(1, 2, 0).numpy(), np.asarray(image))


@pytest.mark.parametrize("upright", [True, False])
def test_tensor_of_a_turned_image(tmp_path, upright):
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = 6
    path = save(tmp_path / "turned.jpg", Image.fromarray(gradient()), exif=exif)
    tensor = load_tensor(path, upright=upright)
    assert np.array_equal(tensor.permute(1, 2, 0).numpy(), np.asarray(load_image(path, upright=upright)))
    assert tensor.shape == ((3, 60, 40) if upright else (3, 40, 60))


def test_tensor_of_a_png(tmp_path):
    rgba = np.dstack([gradient(), np.full((40, 60), 128, np.uint8)])
    path = save(tmp_path / "rgba.png", Image.fromarray(rgba))
    assert np.array_equal(load_tensor(path).permute(1, 2, 0).numpy(), np.asarray(load_image(path)))


@pytest.mark.parametrize("missing", [1, 2, 300, 3000])
def test_tensor_of_a_truncated_jpeg(tmp_path, missing):
    """OpenCV would fill the rest with grey."""
    path = save(tmp_path / "cut.jpg", Image.fromarray(gradient(300, 300)), quality=95)
    path.write_bytes(path.read_bytes()[:-missing])
    with pytest.raises(InputError, match=r"cut\.jpg: cannot read this image \(.*truncated"):
        load_tensor(path)


@pytest.mark.parametrize("content", [None, b"", b"no image", b"\xff\xd8\xff\xd9"])
def test_tensor_of_a_file_that_is_no_image(tmp_path, content):
    path = tmp_path / "broken.jpg"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"broken\.jpg: "):
        load_tensor(path)
