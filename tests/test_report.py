"""The report in a real browser: what it shows, what its filters do, and that it needs no other file."""

import base64
import copy
import dataclasses
import re
import shutil

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from test_evaluate_cli import CLASSES, make_data

import scm_fast
from scm_fast.data import DataSource
from scm_fast.evaluation import EvaluationSettings, Predictor, evaluate
from scm_fast.evaluation.metrics import KINDS
from scm_fast.evaluation.report import charts, write_report
from scm_fast.evaluation.report.confusion import confusion
from scm_fast.evaluation.report.gallery import PREDICTED, TRUTH, build_gallery, choose_examples, draw_boxes
from scm_fast.evaluation.results import ImageResult


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """(path of report.html, result, images, all of it) of an untrained model on 60 images."""
    folder = tmp_path_factory.mktemp("report")
    data = make_data(folder / "shapes", splits=(("train", 3), ("val", 3), ("test", 60)))
    torch.manual_seed(0)
    model = scm_fast.create_model(
        "deit_tiny_patch16_224", num_classes=3, method="scm", pretrained=False, image_size=64
    ).eval()
    predictor = Predictor(model, torch.device("cpu"), name="runs/<scm> & co")
    settings = EvaluationSettings("maxbox", step=0.01, batch_size=16, workers=0, report=True)
    done = evaluate(predictor, DataSource(data), settings)
    path = folder / "report.html"
    write_report(path, done)
    return path, done.result, done.images, done


def test_the_file_is_self_contained(evaluated):
    text = evaluated[0].read_text()
    links = re.findall(r"""(?:src|href|url\()\s*=?\s*["'(]?([^"')\s>]+)""", text)
    assert links
    assert all(link.startswith(("data:image/jpeg;base64,", "#")) for link in links)
    assert all(f'id="{link[1:]}"' in text for link in links if link.startswith("#"))
    assert "http" not in re.sub(r"data:image/jpeg;base64,[A-Za-z0-9+/=]+", "", text)
    assert "runs/&lt;scm&gt; &amp; co" in text, "names are escaped"


@pytest.fixture(scope="module")
def page(evaluated):
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (browser and driver):
        pytest.skip("chromium and chromedriver are not installed (Debian: chromium, chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    chrome.set_window_size(1200, 900)
    chrome.get(evaluated[0].as_uri())
    yield chrome
    chrome.quit()


def find(page, selector):
    return page.find_elements("css selector", selector)


def shown(page):
    return [case for case in find(page, ".case") if case.is_displayed()]


def pick(page, select, value):
    from selenium.webdriver.support.select import Select

    Select(find(page, f"#{select}")[0]).select_by_value(value)


@pytest.fixture
def reset(page):
    find(page, "#reset")[0].click()


def test_metrics_stand_beside_baselines(page, evaluated):
    _, result, *_ = evaluated
    rows = [
        [cell.text for cell in row.find_elements("css selector", "td, th")]
        for row in find(page, "#metrics tr")
    ]
    assert rows[0] == ["metric", "this model", "threshold", "full image", "centre box"]
    table = {row[0]: row[1:] for row in rows[1:]}
    known = result.metrics["gt_known"]
    full, centre = (result.baselines[name]["gt_known"] for name in ("full image", "centre box"))
    assert table["GT-Known"] == [f"{v:.2f}" for v in (known.value,)] + [
        f"global {known.threshold.value:.3f}",
        f"{full:.2f}",
        f"{centre:.2f}",
    ]
    assert "Protocol maxbox" in page.find_element("css selector", "body").text


def test_papers_stand_beside_results_on_their_data_alone(evaluated, tmp_path):
    """All its classes, that is: a few of them are another data set."""
    done = evaluated[3]
    for data, classes, row in (
        ("CUB_200_2011", 200, "76.4"),
        ("ILSVRC", 1000, "66.4"),
        ("CUB_200_2011", 3, None),
        ("my_images", 200, None),
    ):
        about = done.about | {"data": data}
        names = [f"class {number}" for number in range(classes)]
        other = dataclasses.replace(done, about=about, dataset=copy.copy(done.dataset))
        other.dataset.class_names = names
        write_report(tmp_path / "report.html", other)
        text = (tmp_path / "report.html").read_text()
        table = re.search(r'<table id="published">.*?</table>', text, re.S)
        assert (table is not None) == (row is not None)
        if table is not None:
            rows = table[0].split("<tr>")[2:]
            assert "this model (scm)" in rows[0]
            assert "maxbox: threshold" in rows[0]
            assert sum(row in other for other in rows) == 1


def test_charts_are_drawn(page, evaluated):
    _, result, *_ = evaluated
    svgs = find(page, "figure svg")
    assert len(svgs) == 3
    assert all(svg.size["width"] > 200 and svg.size["height"] > 100 for svg in svgs)
    lines, bars, histogram = svgs
    assert len(lines.find_elements("css selector", "polyline")) == 5  # three classes have no Top-5
    assert f"{result.errors['class']:.1f} %" in bars.text
    assert len(histogram.find_elements("css selector", "rect")) == 20


def test_pictures_are_there(page):
    for image in find(page, ".case img")[:3]:
        page.execute_script("arguments[0].scrollIntoView()", image)
        assert (
            page.execute_script("const i = arguments[0]; return i.decode().then(() => i.naturalWidth)", image)
            == 168
        )


@pytest.mark.usefixtures("reset")
def test_everything_is_shown_at_first(page, evaluated):
    _, _, rows, _ = evaluated
    count = len(choose_examples(rows))
    assert len(shown(page)) == count
    assert find(page, "#count")[0].text == f"{count} of {count} images"


@pytest.mark.usefixtures("reset")
def test_filter_by_error_kind(page, evaluated):
    _, _, rows, _ = evaluated
    chosen = [rows[position] for position in choose_examples(rows)]
    kinds = {row.error for row in chosen}
    assert len(kinds) >= 3, "the case has several kinds to tell apart"
    for kind in KINDS:
        pick(page, "kind", kind)
        expected = sorted(row.name for row in chosen if row.error == kind)
        assert sorted(case.text.split(":")[0] for case in shown(page)) == expected
        assert find(page, "#count")[0].text == f"{len(expected)} of {len(chosen)} images"


@pytest.mark.usefixtures("reset")
def test_filter_by_class_and_rank_together(page, evaluated):
    _, _, rows, _ = evaluated
    chosen = choose_examples(rows)
    for label, rank in ((0, "best"), (1, "worst"), (2, "median")):
        pick(page, "label", str(label))
        pick(page, "rank", rank)
        expected = [rows[p].name for p, ranks in chosen.items() if rank in ranks and rows[p].label == label]
        assert expected
        assert [case.text.split(":")[0] for case in shown(page)] == expected
        assert all(f"/{CLASSES[label]}/" in case.text for case in shown(page))
    find(page, "#reset")[0].click()
    assert len(shown(page)) == len(chosen)


def test_the_browser_has_nothing_to_complain_about(page):
    assert [entry for entry in page.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def test_a_narrow_window_does_not_scroll_sideways(page):
    page.set_window_size(500, 900)
    width, visible = page.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    page.set_window_size(1200, 900)
    assert width <= visible


def test_on_a_phone(page):
    """360 pixels wide: nothing scrolls sideways, panels are large enough to see, texts to read."""
    phone = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        assert page.execute_script("return document.documentElement.scrollWidth") <= 360
        assert min(image.size["width"] for image in find(page, ".case img")[:5]) >= 130
        sizes = page.execute_script(
            "return [...document.querySelectorAll('p, td, figcaption, .tag')]"
            ".map((item) => parseFloat(getComputedStyle(item).fontSize))"
        )
        assert min(sizes) >= 13
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_gallery_comes_before_the_numbers(page):
    places = [find(page, f"#{name}")[0].location["y"] for name in ("gallery", "figures", "charts", "classes")]
    assert places == sorted(places)


@pytest.fixture(scope="module")
def several(evaluated, tmp_path_factory):
    """The report of two more models beside that of `evaluated`, all on the same images: (path, results)."""
    data, results = evaluated[3].about["data"], []
    settings = EvaluationSettings("maxbox", step=0.01, batch_size=16, workers=0, report=True, all_maps=True)
    for method in ("cls", "tscam", "scm"):
        torch.manual_seed(0)
        model = scm_fast.create_model("deit_tiny_patch16_224", 3, method, image_size=64).eval()
        predictor = Predictor(model, torch.device("cpu"), name=f"runs/{method}")
        results.append(evaluate(predictor, DataSource(data), settings))
    path = tmp_path_factory.mktemp("several") / "report.html"
    write_report(path, results[-1], results[:-1])
    return path, results


def test_methods_stand_side_by_side(page, several, evaluated):
    """The same images, each with the map and the IoU of every method; and their figures in one table."""
    path, results = several
    page.get(path.as_uri())
    try:
        header, *rows = [
            [cell.text for cell in row.find_elements("css selector", "td, th")]
            for row in find(page, "#metrics tr")
        ]
        assert header == ["metric", "attention alone", "TS-CAM", "SCM", "full image", "centre box"]
        table = {row[0]: row[1:4] for row in rows}
        assert table["GT-Known"] == [f"{done.result.metrics['gt_known'].value:.2f}" for done in results]
        chosen = choose_examples(results[-1].images)
        cases = find(page, ".case")
        assert len(cases) == len(chosen)
        for case, position in list(zip(cases, chosen, strict=True))[:6]:
            captions = [caption.text for caption in case.find_elements("css selector", "figcaption")]
            ious = [f"{done.title} {done.images[position].iou:.2f}" for done in results]
            assert captions == ["input", *ious]
            assert results[-1].images[position].name in case.text
    finally:
        page.get(evaluated[0].as_uri())


def image_result(index, iou, error="region"):
    return ImageResult(
        index, f"{index}.jpg", (10, 10), 0, [0], [1.0], [0, 0, 1, 1], [0, 0, 1, 1], iou, iou, error
    )


def test_the_gallery_has_best_median_and_worst():
    iou = np.random.default_rng(0).permutation(101) / 100
    rows = [image_result(i, value) for i, value in enumerate(iou.tolist())]
    chosen = choose_examples(rows, count=3, per_kind=0)
    by_rank = {r: sorted(rows[p].iou for p in chosen if r in chosen[p]) for r in ("best", "median", "worst")}
    assert by_rank == {"best": [0.98, 0.99, 1.0], "median": [0.49, 0.5, 0.51], "worst": [0.0, 0.01, 0.02]}


def test_the_gallery_of_few_images_or_none_judged():
    assert list(choose_examples([image_result(0, 0.4)])) == [0]
    assert set(choose_examples([image_result(0, 0.4)])[0]) == {"best", "median", "worst"}
    assert list(choose_examples([image_result(i, None, None) for i in range(5)], count=2)) == [0, 1]


@pytest.mark.parametrize("size", [(400, 300), (300, 900)])
@pytest.mark.parametrize("box", [(0.2, 0.2, 0.7, 0.8), (0, 0, 1, 1)], ids=["inner", "whole"])
def test_both_boxes_are_seen_where_they_agree(size, box):
    corners = [share * side for share, side in zip(box, (*size, *size), strict=True)]
    panel = draw_boxes(np.zeros((size[1] // 4, size[0] // 4, 3), np.uint8), size, [corners], corners)
    x0, y0, x1, y1 = (round(corner / 4) for corner in corners)
    middle = (x0 + x1) // 2, (y0 + y1) // 2
    for side in (
        panel[middle[1], max(0, x0 - 4) : x0 + 4],
        panel[middle[1], x1 - 4 : x1 + 4],
        panel[max(0, y0 - 4) : y0 + 4, middle[0]],
        panel[y1 - 4 : y1 + 4, middle[0]],
    ):
        colours = {tuple(pixel) for pixel in side.tolist()}
        assert {TRUTH, PREDICTED} <= colours


def test_pictures_of_the_gallery_keep_their_proportions(tmp_path):
    """Grey fills what a high picture leaves of its panel's width."""
    for name, size in (("wide", (200, 100)), ("high", (60, 180))):
        folder = tmp_path / "test" / name
        folder.mkdir(parents=True)
        Image.new("RGB", size, (255, 0, 0)).save(folder / "a.png")
        for split in ("train", "val"):
            shutil.copytree(folder, tmp_path / split / name)
    model = scm_fast.create_model(
        "deit_tiny_patch16_224", num_classes=2, method="cls", image_size=32, backbone_options={"depth": 1}
    ).eval()
    settings = EvaluationSettings("unboxed", workers=0, report=True)
    done = evaluate(Predictor(model, torch.device("cpu")), DataSource(tmp_path), settings)
    shapes = {"wide": (84, 168, 3), "high": (168, 168, 3)}
    for case in build_gallery([done]):
        name = case.image.name.split("/")[1]
        # No empty panel for a semantic map that there is not, and attention that is the map comes once.
        assert [panel.caption for panel in case.panels] == ["input", "map", "box"]
        for panel in case.panels:
            data = np.frombuffer(base64.b64decode(panel.uri.partition(",")[2]), np.uint8)
            picture = cv2.imdecode(data, cv2.IMREAD_COLOR)[..., ::-1].astype(int)
            assert picture.shape == shapes[name]
            if (name, panel.caption) == ("high", "input"):
                red = (picture[..., 0] - picture[..., 1] > 128).sum(1)
                assert np.abs(red - 56).max() <= 2, "a third as wide as high"
    write_report(tmp_path / "report.html", done)
    text = (tmp_path / "report.html").read_text()
    assert all(case.image.box is not None for case in build_gallery([done])), "boxes without ground truth"
    assert "Published results" not in text


def test_the_confusion_matrix_counts_every_image(page, evaluated):
    _, _, rows, _ = evaluated
    cells = [
        [cell.text for cell in row.find_elements("css selector", "td")] for row in find(page, "#confusion tr")
    ]
    for label, counts in enumerate(cells[1:]):
        for predicted, count in enumerate(counts):
            expected = sum(row.label == label and row.top_classes[0] == predicted for row in rows)
            assert int(count or 0) == expected
    assert sum(int(count or 0) for row in cells for count in row) == 60


def test_the_mistakes_of_many_classes():
    labels, predicted = np.array([0, 0, 0, 5, 5, 7, 30]), np.array([1, 1, 0, 6, 5, 8, 29])
    found = confusion(labels, predicted, 200)
    assert found.counts is None
    assert found.mistakes == [(0, 1, 2), (5, 6, 1), (7, 8, 1), (30, 29, 1)]


def test_histogram_counts_every_value():
    svg = charts.histogram([0.0, 0.04, 0.05, 0.999, 1.0], 20, "IoU")
    titles = re.findall(r"<title>(.*?)</title>", svg)
    assert titles[0] == "0.00 to 0.05: 2 images, 40.0 %"
    assert titles[1] == "0.05 to 0.10: 1 images, 20.0 %"
    assert titles[-1] == "0.95 to 1.00: 2 images, 40.0 %"
