"""`scm-fast plot` on runs that train.py's parts made."""

import csv
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from data_folders import write_cub, write_folder
from PIL import Image

from scm_fast import InputError, load_model, reference
from scm_fast.cli import main
from scm_fast.runs import read_run
from scm_fast.training import Trainer, make_config
from scm_fast.training.validation import evaluate_kept_model

pytest.importorskip("matplotlib")
from scm_fast.runs import curves
from scm_fast.runs.comparison_maps import comparison_maps
from scm_fast.runs.maps import choose_subjects, compute_maps, maps_figure

CPU = torch.device("cpu")
CURVES = {"loss.png", "accuracy.png", "threshold.png", "calibration.png"}
FIELDS = {
    "backbone": "vit_tiny_patch16_224",
    "backbone_options": {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2},
    "pretrained": False,
    "image_size": 32,
    "epochs": 2,
    "warmup_epochs": 0,
    "global_batch": 5,
    "lr": 1e-2,
    "workers": 0,
    "device": "cpu",
    "report": False,
}


def train(data: Path, out: Path, **fields: object) -> Path:
    config = make_config({**FIELDS, "data": str(data), "out": str(out), **fields}, "test")
    trainer = Trainer(config, CPU)
    trainer.fit()
    evaluate_kept_model(config, trainer.source, out / trainer.kept_model(), CPU, None)
    return out


@pytest.fixture(scope="module")
def scm_run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("plot")
    return train(write_cub(folder / "CUB"), folder / "run")


@pytest.fixture
def plot(capsys):
    """Runs the command in this process; gives (exit status, names of the files it wrote, stderr)."""

    def run(*arguments):
        capsys.readouterr()  # what training said
        status = main(["plot", *map(str, arguments)])
        printed = capsys.readouterr()
        written = [Path(line) for line in printed.out.splitlines()]
        assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
        return status, {path.name for path in written}, printed.err

    return run


def test_pictures_of_a_run(scm_run, plot):
    status, written, said = plot(scm_run)
    assert (status, said) == (0, "")
    assert written == CURVES | {"maps.png"}
    with Image.open(scm_run / "plots" / "calibration.png") as picture:
        assert len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)) > 10


def test_maps_of_several_runs(scm_run, tmp_path, capsys):
    tscam_run = train(scm_run.parent / "CUB", tmp_path / "tscam", method="tscam")
    runs = [read_run(scm_run), read_run(tscam_run)]
    figure = comparison_maps(runs, ["1", "4", "5"], CPU)
    panels = np.array(figure.axes).reshape(3, 3)  # the images, and a row for each run
    assert [axes.get_title() for axes in panels[:, 0]] == ["image", "run", "tscam"]
    for row, run in enumerate(runs, 1):
        model, dataset = load_model(run.kept_model), run.config.source().split("test")
        results = compute_maps(model, choose_subjects(dataset, ["1", "4", "5"]), CPU)
        for axes, result in zip(panels[row], results, strict=True):
            truth, found = axes.patches
            x0, y0, x1, y1 = result.box
            assert found.get_bbox().extents.tolist() == pytest.approx([x0, y0, x1, y1])
            assert truth.get_bbox().extents.tolist() == pytest.approx(list(result.subject.boxes[0]))

    capsys.readouterr()
    picture = tmp_path / "maps.png"
    assert main(["compare", str(scm_run), str(tscam_run), "--maps", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["compare", str(scm_run), "--images", "1"]) == 2
    assert "--images: goes with --maps" in capsys.readouterr().err
    other = train(write_cub(tmp_path / "CUB", classes=4), tmp_path / "other")
    assert main(["compare", str(scm_run), str(other), "--maps", str(picture)]) == 2
    assert "different classes, 3 and 4 of them" in capsys.readouterr().err


def test_curves_show_the_logs(scm_run):
    run = read_run(scm_run)
    with (scm_run / "log.csv").open() as file:
        log = list(csv.DictReader(file))
    lam, beta = curves.calibration_figure(run).axes
    for axes, name in ((lam, "lam"), (beta, "beta")):
        assert [line.get_label() for line in axes.get_lines()] == [f"block {b}" for b in (1, 2, 3, 4)]
        for block, line in enumerate(axes.get_lines(), 1):
            assert list(line.get_xdata()) == [1, 2]
            assert list(line.get_ydata()) == [float(row[f"{name}_{block}"]) for row in log]
    lines = {line.get_label(): line for line in curves.accuracy_figure(run).axes[0].get_lines()}
    assert list(lines["GT-Known, val"].get_ydata()) == [float(row["gt_known"]) for row in log]
    assert "kept: best GT-Known" in lines
    loss, rate = curves.loss_figure(run).axes
    assert len(loss.get_lines()[0].get_xdata()) == len(rate.get_lines()[0].get_xdata()) == 8


def test_moving_mean():
    values = np.array([1.0, 3.0, 5.0, 9.0])
    assert curves.moving_mean(values, 2).tolist() == [1, 2, 4, 7]
    assert curves.moving_mean(values, 1).tolist() == values.tolist()


def test_maps_are_those_of_the_blocks(scm_run):
    """Compare with the literal equations, block by block; the box with the evaluation's own."""
    run = read_run(scm_run)
    model, dataset = load_model(run.kept_model), run.config.source().split("test")
    subjects = choose_subjects(dataset, ["7", dataset.records[2].id])
    assert [subject.name for subject in subjects] == [dataset.records[7].id, dataset.records[2].id]
    with (scm_run / "evaluation" / "predictions.csv").open() as file:
        evaluated = {row["image"]: row for row in csv.DictReader(file)}
    for result in compute_maps(model, subjects, CPU):
        assert len(result.semantic) == len(result.attention) == 5
        expected = [
            float(evaluated[result.subject.name][f"true_class_{c}"]) for c in ("x0", "y0", "x1", "y1")
        ]
        assert result.box == pytest.approx(expected, abs=0.01)
        whole = model(_network_input(model, result.subject.image))
        S, F = whole.semantic.flatten(2), reference.min_max(whole.attention.flatten(1))
        for block in range(4):
            lam, beta = model.calibration.lam[block], model.calibration.beta[block]
            S, F, _ = reference.diffusion_block(S, F, lam, beta, (4, 4), 4, 0.002, False)
            found_S = torch.tensor(result.semantic[block + 1]).flatten()
            torch.testing.assert_close(found_S, S[0, result.label].detach(), rtol=1e-3, atol=1e-4)
            found_F = torch.tensor(result.attention[block + 1]).flatten()
            torch.testing.assert_close(found_F, F[0].detach(), rtol=1e-3, atol=1e-4)


def _network_input(model, image):
    from scm_fast.evaluation.predictor import Predictor

    preprocessing = Predictor(model, CPU).preprocessing
    return preprocessing.normalize(preprocessing.prepare(image).unsqueeze(0))


def test_grid_of_maps(scm_run):
    run = read_run(scm_run)
    model, dataset = load_model(run.kept_model), run.config.source().split("test")
    results = compute_maps(model, choose_subjects(dataset, ["0", "5"]), CPU)
    figure = maps_figure(results, model.config.class_names)
    titles = [axes.get_title() for axes in figure.axes]
    assert len(titles) == 4 * 7  # two rows per image: image or its name, five maps, box or its map
    assert titles[:7] == ["image", *(f"$S^{{{block}}}$" for block in range(5)), "box"]
    assert titles[8:14] == [*(f"$F^{{{block}}}$" for block in range(5)), "$F^0 S^0$"]
    assert len(figure.axes[6].patches) == 2  # the true box and the one that was found


def test_a_model_without_semantic_maps_has_one_row_and_its_map_once(tmp_path):
    run = read_run(train(write_folder(tmp_path / "pets"), tmp_path / "run", method="cls", epochs=1))
    model, dataset = load_model(run.kept_model), run.config.source().split("test")
    results = compute_maps(model, choose_subjects(dataset, ["0", "1"]), CPU)
    figure = maps_figure(results, model.config.class_names)
    assert [axes.get_title() for axes in figure.axes] == ["image", "", "$F^0$", "box"] * 2
    assert all(axes.images or axes.texts for axes in figure.axes), "no panel is empty"


def test_images_that_are_chosen(scm_run, plot, tmp_path):
    photo = next((scm_run.parent / "CUB").rglob("*_0002.jpg"))
    status, written, _ = plot(scm_run, "--images", 3, photo, "--model", "last", "--out", tmp_path)
    assert (status, written) == (0, CURVES | {"maps.png"})
    assert (tmp_path / "maps.png").is_file()
    status, _, said = plot(scm_run, "--images", "12", "--out", tmp_path)
    assert status == 2
    assert "12: neither a file, nor the name of an image of split test" in said
    assert "a number from 0 to 11" in said
    status, _, said = plot(scm_run, "--model", "best", "--out", tmp_path)
    assert status == 2
    assert "best: no such checkpoint" in said


def test_data_that_are_elsewhere(scm_run, plot, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(scm_run, run)
    text = (run / "config.yaml").read_text()
    data = str(scm_run.parent / "CUB")
    (run / "config.yaml").write_text(text.replace(data, "/nowhere/CUB"))
    status, written, said = plot(run)
    assert (status, written) == (0, CURVES)
    assert "no maps: /nowhere/CUB: no such folder" in said
    assert plot(run, "--images", 0)[0] == 2
    assert plot(run, "--images", 0, "--data", data)[:2] == (0, CURVES | {"maps.png"})


@pytest.mark.parametrize("method", ["tscam", "cls"])
def test_models_without_calibration_or_boxes(plot, tmp_path, method):
    run = train(write_folder(tmp_path / "pets"), tmp_path / "run", method=method, epochs=1)
    assert plot(run)[:2] == (0, CURVES - {"calibration.png"} | {"maps.png"})


def test_run_that_goes_on(scm_run, plot, tmp_path):
    """No epoch is finished, and a row is half written."""
    shutil.copy(scm_run / "config.yaml", tmp_path / "config.yaml")
    status, _, said = plot(tmp_path)
    assert status == 2
    assert "has logged nothing yet" in said
    (tmp_path / "steps.csv").write_text("step,epoch,loss,lr,gradient_norm\n0,0,2.5,0.1,1.0\n1,0,2.")
    status, written, said = plot(tmp_path)
    assert (status, written) == (0, {"loss.png"})
    assert "no maps" in said


def test_what_is_refused(scm_run, plot, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="not a run folder"):
        read_run(tmp_path)
    assert plot(tmp_path / "none")[2] == f"scm-fast plot: error: {tmp_path / 'none'}: no such run folder\n"
    (tmp_path / "taken").write_text("a file")
    status, _, said = plot(scm_run, "--out", tmp_path / "taken")
    assert status == 2
    assert "not a folder" in said
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, _, said = plot(scm_run)
    assert status == 2
    assert "pip install 'scm-fast[plots]'" in said
