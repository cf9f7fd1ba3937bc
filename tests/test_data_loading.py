"""Transforms, cache, samplers and loaders, on real files and with real processes."""

import io
import os
import random
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
import torch
from data_folders import truncate, write_cub, write_image
from PIL import Image
from torchvision import transforms as classic

from scm_fast.data import (
    DecodedCache,
    Preprocessing,
    build_evaluation_loader,
    build_train_loader,
    open_dataset,
    published_preprocessing,
)
from scm_fast.data.order import EvaluationOrder, TrainOrder
from scm_fast.errors import InputError

TRAIN, TEST = (
    published_preprocessing(training=True, image_size=28),
    published_preprocessing(training=False, image_size=28),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_cub(tmp_path_factory.mktemp("cub"))


@pytest.fixture(scope="module")
def train(root):
    return open_dataset(root, "trainval")  # 24 images


@pytest.fixture(scope="module")
def test_set(root):
    return open_dataset(root, "test")  # 12 images


# --- preprocessing -----------------------------------------------------------------------------------------


def test_test_preprocessing_equals_the_plain_pipeline(tmp_path):
    path = write_image(tmp_path / "image.png", (320, 210), seed=3)
    image = Image.open(path).convert("RGB")
    plain = classic.Compose(
        [
            classic.Resize((224, 224)),
            classic.ToTensor(),
            classic.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )(image)
    preprocessing = published_preprocessing(training=False)
    ours = preprocessing.normalize(preprocessing.prepare(image)[None])[0]
    assert ours.shape == (3, 224, 224)
    assert (ours - plain).abs().max() < 1.5 / 255 / 0.224  # one grey level


def test_training_preprocessing_crops_and_flips():
    preprocessing = published_preprocessing(training=True)
    assert preprocessing.size == (256, 256)
    ramp = torch.arange(256, dtype=torch.uint8).expand(3, 256, 256).contiguous()
    rows = [preprocessing.augment(ramp)[0, 0].int() for _ in range(60)]
    steps = [set((row[1:] - row[:-1]).tolist()) for row in rows]
    assert all(step in ({1}, {-1}) for step in steps)  # a straight crop, or a flipped one
    assert {1} in steps
    assert {-1} in steps
    starts = {int(row.min()) for row in rows}
    assert len(starts) > 10
    assert max(starts) <= 32


def test_color_jitter_changes_colours_within_bounds():
    share = 0.2
    augment = published_preprocessing(training=True, image_size=8, resize=8, color_jitter=share).augment
    grey = torch.full((3, 8, 8), 100, dtype=torch.uint8)  # whose contrast and saturation do not change
    levels = [augment(grey).unique().tolist() for _ in range(1000)]
    assert all(len(level) == 1 for level in levels)
    assert len({level[0] for level in levels}) > 10
    # Brightness, contrast and saturation each end in whole levels, cut and not rounded.
    assert {100 * (1 - share) - 3 <= level[0] <= 100 * (1 + share) for level in levels} == {True}
    spots = torch.zeros(3, 8, 8, dtype=torch.uint8)
    spots[0, :4], spots[1, 4:] = 120, 120  # red and green
    ratios = {(found[1, 0, 0] / found[0, 0, 0]).item() for found in (augment(spots) for _ in range(40))}
    assert len(ratios) > 10  # saturation


def test_normalize_is_the_same_for_any_dtype_of_batch():
    images = torch.randint(0, 256, (3, 3, 5, 7), dtype=torch.uint8)
    preprocessing = Preprocessing((5, 7), mean=(0.5, 0.4, 0.3), std=(0.1, 0.2, 0.3))
    expected = (images.double() / 255 - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / torch.tensor(
        [0.1, 0.2, 0.3]
    ).view(3, 1, 1)
    torch.testing.assert_close(preprocessing.normalize(images).double(), expected, rtol=1e-5, atol=1e-5)


def test_impossible_preprocessing():
    with pytest.raises(InputError, match="resize=200: must be at least the crop"):
        published_preprocessing(training=True, image_size=224, resize=200)


# --- samplers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 7, 16, 23])
def test_evaluation_gives_each_image_to_one_process(count, world):
    shares = [
        [index for batch in EvaluationOrder(count, 4, rank=rank, world=world) for _, index in batch]
        for rank in range(world)
    ]
    assert sorted(index for share in shares for index in share) == list(range(count))
    for rank in range(world):
        batches = EvaluationOrder(count, 4, rank=rank, world=world)
        assert len(batches) == len(list(batches))


@pytest.mark.parametrize(
    ("world", "micro_batch"), [(1, None), (1, 4), (1, 5), (2, None), (2, 3), (3, None), (3, 2), (7, 1)]
)
def test_global_batches_do_not_depend_on_the_processes(world, micro_batch):
    def steps(world, micro_batch):
        """The images of each global batch, and the sizes of its micro-batches."""
        found = []
        for rank in range(world):
            batches = TrainOrder(47, 10, micro_batch, seed=5, rank=rank, world=world)
            parts = list(batches)
            assert len(parts) == len(batches) == 4 * batches.micro_batches
            found.append(
                [parts[i : i + batches.micro_batches] for i in range(0, len(parts), batches.micro_batches)]
            )
        assert len({len(share[0]) for share in found}) == 1  # as many micro-batches everywhere
        sizes = [len(part) for share in found for step in share for part in step]
        return [
            sorted(i for share in found for part in share[step] for _, i in part) for step in range(4)
        ], sizes

    expected, _ = steps(1, None)
    got, sizes = steps(world, micro_batch)
    assert got == expected
    assert len({i for step in got for i in step}) == 40
    assert min(sizes) >= 1
    if micro_batch and 10 % world == 0:
        assert max(sizes) <= micro_batch


def test_epochs_and_seeds_differ():
    def order(seed, epoch):
        batches = TrainOrder(40, 8, seed=seed)
        batches.epoch = epoch
        return [index for batch in batches for _, index in batch]

    assert order(0, 0) == order(0, 0)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5, 8), "5 training images do not fill one global batch of 8"),
        ((50, 8, 0), "micro_batch=0"),
    ],
)
def test_impossible_batches(arguments, message):
    with pytest.raises(InputError, match=message):
        TrainOrder(*arguments)
    with pytest.raises(InputError, match="a global batch of 2 images is too small for 3 processes"):
        TrainOrder(50, 2, world=3)
    with pytest.raises(InputError, match="5 training images are too few for 8 processes"):
        TrainOrder(5, 8, world=8)


# --- loaders --------------------------------------------------------------------------------------------


def everything(loader):
    return [(batch.indices.tolist(), batch.labels.tolist(), batch.images.clone()) for batch in loader]


def same(first, second):
    assert [entry[:2] for entry in first] == [entry[:2] for entry in second]
    assert all(torch.equal(a[2], b[2]) for a, b in zip(first, second, strict=True))


def test_batches_do_not_depend_on_workers(train):
    results = []
    for workers in (0, 1, 2):
        loader = build_train_loader(train, TRAIN, global_batch=8, seed=1, workers=workers)
        results.append(everything(loader) + everything(loader))  # two epochs
        assert loader.epoch == 2
    same(results[0], results[1])
    same(results[0], results[2])
    images = {}
    for indices, labels, pixels in results[0]:
        assert labels == [int(train.labels[i]) for i in indices]
        for index, image in zip(indices, pixels, strict=True):
            images.setdefault(index, []).append(image)
    # Augmentation is drawn anew each epoch.
    assert sum(not torch.equal(*pair) for pair in images.values() if len(pair) == 2) > 20


def test_two_processes_see_what_one_sees(train):
    def by_step(world):
        merged = {}
        for rank in range(world):
            loader = build_train_loader(train, TRAIN, global_batch=8, process=(rank, world), workers=0)
            for step, batch in enumerate(loader):
                for index, image in zip(batch.indices.tolist(), batch.images, strict=True):
                    merged[step, index] = image
        return merged

    one, two = by_step(1), by_step(2)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_mid_epoch(train, workers):
    def fresh(world=1, rank=0):
        return build_train_loader(
            train, TRAIN, global_batch=8, micro_batch=4, workers=workers, process=(rank, world)
        )

    whole = fresh()
    expected = everything(whole) + everything(whole)
    interrupted = fresh()
    seen = []
    for batch in interrupted:
        seen.append((batch.indices.tolist(), batch.labels.tolist(), batch.images.clone()))
        if len(seen) == 3:  # in the middle of the second step: it is done again
            break
    state = interrupted.state_dict()
    assert (state["epoch"], state["step"]) == (0, 1)
    resumed = fresh()
    resumed.load_state_dict(state)
    same(expected, seen[:2] + everything(resumed) + everything(resumed))
    # On another number of processes: the same global batches.
    halves = [fresh(2, rank) for rank in range(2)]
    for half in halves:
        half.load_state_dict(state)
    dealt = [[i for indices, *_ in everything(half) for i in indices] for half in halves]
    assert sorted(dealt[0] + dealt[1]) == sorted(i for indices, *_ in expected[2:6] for i in indices)


@pytest.mark.parametrize("workers", [0, 1])
def test_leaving_the_loop_and_going_on(train, workers):
    whole = build_train_loader(train, TRAIN, global_batch=8, workers=workers)
    expected = everything(whole)
    loader = build_train_loader(train, TRAIN, global_batch=8, workers=workers)
    assert len(loader) == 3
    for _ in loader:
        break
    assert len(loader) == 2
    same(expected[1:], everything(loader))
    assert len(loader) == 3


def test_position_at_the_end_of_an_epoch(train):
    loader = build_train_loader(train, TRAIN, global_batch=8, micro_batch=4, workers=0)
    assert (loader.steps, loader.micro_batches) == (3, 2)
    flags = [(batch.ends_step, loader.state_dict()["epoch"], loader.state_dict()["step"]) for batch in loader]
    assert flags == [(False, 0, 0), (True, 0, 1), (False, 0, 1), (True, 0, 2), (False, 0, 2), (True, 1, 0)]
    assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (1, 0)


def test_resuming_another_run_is_refused(train):
    state = build_train_loader(train, TRAIN, global_batch=8, seed=1, workers=0).state_dict()
    with pytest.raises(InputError, match="cannot resume: seed was 1 and is now 2"):
        build_train_loader(train, TRAIN, global_batch=8, seed=2, workers=0).load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 1])
def test_loading_leaves_the_global_random_state_alone(train, workers):
    random.seed(3)
    torch.manual_seed(3)
    expected = (torch.rand(4).tolist(), random.random())
    random.seed(3)
    torch.manual_seed(3)
    everything(build_train_loader(train, TRAIN, global_batch=8, workers=workers))
    assert (torch.rand(4).tolist(), random.random()) == expected


def test_evaluation_loader(test_set):
    found = everything(build_evaluation_loader(test_set, TEST, batch_size=5, workers=1))
    assert [indices for indices, *_ in found] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    assert found[0][2].shape == (5, 3, 28, 28)
    expected = TEST.normalize(TEST.prepare(test_set.load(7))[None])[0]
    torch.testing.assert_close(found[1][2][2], expected)


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks for processes in /proc")
def test_workers_end_with_the_process_that_they_work_for(root):
    script = f"""
import multiprocessing, os, signal, torch
from scm_fast.data import build_train_loader, open_dataset, published_preprocessing
loader = build_train_loader(
    open_dataset({str(root)!r}, "train"), published_preprocessing(training=True, image_size=32),
    global_batch=2, workers=2,
)
next(iter(loader))
workers = [child.pid for child in multiprocessing.active_children()]
for worker in workers:
    os.kill(worker, signal.SIGTERM)
    os.kill(worker, signal.SIGINT)
list(loader)
print(*workers, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == -9, done.stderr
    workers = list(map(int, done.stdout.split()))
    assert len(workers) == 2
    deadline = time.monotonic() + 60
    while any(map(is_running, workers)):
        assert time.monotonic() < deadline, "the workers are still there"
        time.sleep(0.2)


def is_running(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_process_group_is_used(root, tmp_path):
    """Two real processes: ranks come from torch.distributed, and every image is in exactly one of them."""
    script = tmp_path / "share.py"
    script.write_text(
        "import sys, torch\n"
        "from scm_fast.data import *\n"
        "torch.distributed.init_process_group('gloo')\n"
        f"dataset = open_dataset({str(root)!r}, 'test')\n"
        "preprocessing = published_preprocessing(training=False, image_size=28)\n"
        "loader = build_evaluation_loader(dataset, preprocessing, batch_size=5, workers=1)\n"
        "mine = [i for batch in loader for i in batch.indices.tolist()]\n"
        "shares = [None] * torch.distributed.get_world_size()\n"
        "torch.distributed.all_gather_object(shares, mine)\n"
        "assert all(shares) and sorted(sum(shares, [])) == list(range(12)), shares\n"
        "torch.distributed.destroy_process_group()\n"
    )
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(script),
    ]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=180, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert result.returncode == 0, result.stderr


# --- bad images -----------------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path):
    root = write_cub(tmp_path)
    for name in (
        "001.Bird_0/Bird_0_0002.jpg",
        "001.Bird_0/Bird_0_0000.jpg",
    ):  # the first of test and of train
        truncate(root / "images" / name)
    return root


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_image_stops_loading_with_its_name(damaged, workers):
    loader = build_evaluation_loader(open_dataset(damaged, "test"), TEST, batch_size=5, workers=workers)
    with pytest.raises(InputError) as caught:
        list(loader)
    assert str(caught.value).startswith(
        str(damaged / "images" / "001.Bird_0" / "Bird_0_0002.jpg: cannot read")
    )
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_evaluation_leaves_bad_images_out_and_lists_them(damaged, workers):
    dataset = open_dataset(damaged, "test")
    for batch_size in (1, 5):
        loader = build_evaluation_loader(
            dataset, TEST, batch_size=batch_size, workers=workers, skip_bad_images=True
        )
        assert [i for batch in loader for i in batch.indices.tolist()] == list(range(1, 12))
        assert list(loader.left_out) == ["001.Bird_0/Bird_0_0002.jpg"]
        assert "Bird_0_0002.jpg: cannot read" in str(loader.left_out["001.Bird_0/Bird_0_0002.jpg"])


def test_training_replaces_bad_images_by_the_next(damaged):
    dataset = open_dataset(damaged, "trainval")
    loader = build_train_loader(dataset, TRAIN, global_batch=8, workers=1, skip_bad_images=True)
    indices = [i for batch in loader for i in batch.indices.tolist()]
    assert sorted(indices) == [1, 1, *range(2, 24)]
    assert list(loader.left_out) == ["001.Bird_0/Bird_0_0000.jpg"]


# --- decoded cache --------------------------------------------------------------------------------------


def test_cache_gives_the_same_batches(train, tmp_path):
    plain = everything(build_train_loader(train, TRAIN, global_batch=8, workers=0))
    for workers in (2, 0):  # filled by two workers at once, then read
        cache = DecodedCache(tmp_path, train, TRAIN.size, max_gigabytes=1)
        loader = build_train_loader(train, TRAIN, global_batch=8, workers=workers, cache=cache)
        same(plain, everything(loader))
    assert all(cache.get(i, train.records[i].path) is not None for i in range(len(train)))


def test_cache_saves_decoding(train, tmp_path, monkeypatch):
    cache = DecodedCache(tmp_path, train, TRAIN.size, max_gigabytes=1)
    everything(build_train_loader(train, TRAIN, global_batch=8, workers=0, cache=cache))
    monkeypatch.setattr(type(train), "load_tensor", lambda *_: pytest.fail("decoded again"))
    assert len(everything(build_train_loader(train, TRAIN, global_batch=8, workers=0, cache=cache))) == 3


def test_cache_is_bounded(train, tmp_path):
    size = 32 * 32 * 3 + 24
    cache = DecodedCache(tmp_path, train, (32, 32), max_gigabytes=5.5 * size / 1e9)
    assert cache.slots == 5
    everything(build_train_loader(train, TRAIN, global_batch=8, workers=0, cache=cache))
    assert cache.path.stat().st_size == 5 * size
    assert cache.get(4, train.records[4].path) is not None
    assert cache.get(5, train.records[5].path) is None
    with pytest.raises(InputError, match="has no room for one 32 x 32 image"):
        DecodedCache(tmp_path, train, (32, 32), max_gigabytes=1e-9)


def test_cache_notices_a_changed_image_and_damage(root, tmp_path):
    folder = tmp_path / "copy"
    write_cub(folder)
    dataset = open_dataset(folder, "test")
    cache = DecodedCache(tmp_path / "cache", dataset, TEST.size, max_gigabytes=1)
    options = {"batch_size": 12, "workers": 0, "cache": cache}
    before = everything(build_evaluation_loader(dataset, TEST, **options))[0][2]
    path = dataset.records[3].path
    time.sleep(0.01)
    write_image(folder / "images" / dataset.records[3].id, seed=99)
    assert cache.get(3, path) is None
    after = everything(build_evaluation_loader(dataset, TEST, **options))[0][2]
    assert not torch.equal(before[3], after[3])
    assert torch.equal(before[4], after[4])
    with cache.path.open("r+b") as file:  # a bit of image 4 turns
        file.seek(cache.path.stat().st_size // 12 * 4 + 1000)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    assert cache.get(4, dataset.records[4].path) is None
    assert torch.equal(everything(build_evaluation_loader(dataset, TEST, **options))[0][2], after)


def test_cache_on_a_full_disk_goes_on_without(train, tmp_path, monkeypatch, caplog):
    cache = DecodedCache(tmp_path, train, TRAIN.size, max_gigabytes=1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert len(everything(build_train_loader(train, TRAIN, global_batch=8, workers=0, cache=cache))) == 3
    assert caplog.text.count("the disk is full") == 1


def test_cache_of_other_images_is_refused(train, test_set, tmp_path):
    cache = DecodedCache(tmp_path, train, TRAIN.size, max_gigabytes=1)
    with pytest.raises(InputError, match="not split 'test' at 32 x 32"):
        build_train_loader(test_set, TRAIN, global_batch=8, cache=cache)
    with pytest.raises(InputError, match="not split 'trainval' at 28 x 28"):
        build_evaluation_loader(train, TEST, batch_size=8, cache=cache)


def test_cache_in_an_impossible_place(train, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot keep decoded images here"):
        DecodedCache(tmp_path / "file", train, TRAIN.size, max_gigabytes=1)


def test_large_jpegs_are_decoded_scaled(tmp_path):
    """The loader asks for the preprocessing's size, so a large photograph is not decoded whole."""
    root = write_cub(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize((1600, 1200), Image.BICUBIC).save(buffer, "JPEG")
    dataset = open_dataset(root, "test")
    with open(dataset.records[0].path, "wb") as file:
        file.write(buffer.getvalue())
    assert dataset.load(0, target_size=(256, 256)).size == (400, 300)
    assert zlib.crc32(dataset.load(0).tobytes()) == zlib.crc32(Image.open(buffer).tobytes())
