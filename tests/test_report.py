"""The report in a real browser: what it shows, what its filters do, and that it needs no other file."""

import re
import shutil

import numpy as np
import pytest
import torch
from test_evaluate_cli import CLASSES, make_data

import scm_fast
from scm_fast.data import DataSource
from scm_fast.evaluation import EvaluationSettings, Predictor, evaluate
from scm_fast.evaluation.metrics import KINDS
from scm_fast.evaluation.report import charts, write_report
from scm_fast.evaluation.report.gallery import choose_examples
from scm_fast.evaluation.results import ImageResult


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """(path of report.html, result, images) of an untrained model on 60 images."""
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
    return path, done.result, done.images


def test_the_file_is_self_contained(evaluated):
    text = evaluated[0].read_text()
    links = re.findall(r"""(?:src|href|url\()\s*=?\s*["'(]?([^"')\s>]+)""", text)
    assert links
    assert all(link.startswith("data:image/jpeg;base64,") for link in links)
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


def test_metrics_stand_beside_baselines_and_published_rows(page, evaluated):
    _, result, _ = evaluated
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
    published = find(page, "#published tr")
    assert "this model (scm)" in published[1].text
    assert "maxbox: threshold" in published[1].text
    scm = [row.text for row in published if "76.4 91.6 96.6" in row.text]
    assert len(scm) == 1
    assert "best threshold and epoch on the test split" in scm[0]
    assert "Protocol maxbox" in page.find_element("css selector", "body").text


def test_charts_are_drawn(page, evaluated):
    _, result, _ = evaluated
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
            == 840
        )


@pytest.mark.usefixtures("reset")
def test_everything_is_shown_at_first(page, evaluated):
    _, _, rows = evaluated
    count = len(choose_examples(rows))
    assert len(shown(page)) == count
    assert find(page, "#count")[0].text == f"{count} of {count} images"


@pytest.mark.usefixtures("reset")
def test_filter_by_error_kind(page, evaluated):
    _, _, rows = evaluated
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
    _, _, rows = evaluated
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


def test_histogram_counts_every_value():
    svg = charts.histogram([0.0, 0.04, 0.05, 0.999, 1.0], 20, "IoU")
    titles = re.findall(r"<title>(.*?)</title>", svg)
    assert titles[0] == "0.00 to 0.05: 2 images, 40.0 %"
    assert titles[1] == "0.05 to 0.10: 1 images, 20.0 %"
    assert titles[-1] == "0.95 to 1.00: 2 images, 40.0 %"
