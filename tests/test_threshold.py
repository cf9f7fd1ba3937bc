"""Threshold rules, their curves and the choice without boxes, by hand and against literal loops."""

import json

import cv2
import numpy as np
import pytest
import torch
from test_boxes import literal_boxes, literal_iou, literal_uint8
from test_evaluator import accumulate, make_images

from scm_fast import choices
from scm_fast.errors import InputError
from scm_fast.evaluation import EvaluationSettings, Evaluator, protocols
from scm_fast.evaluation.boxes import locate
from scm_fast.threshold import (
    DEFAULT_THRESHOLD,
    FEWEST_IMAGES,
    MapStatistics,
    Rule,
    Threshold,
    choose_unboxed,
    cut_levels,
    make_threshold,
    map_statistics,
    protocol_to_use,
    register_rule,
    rules,
    threshold_from_json,
    threshold_to_use,
    token_separation,
)
from scm_fast.threshold.unboxed import SEPARATION_VALUES, separation_peak

# Three quarters at 0, one eighth at 0.5, one eighth at 1: mean 3/16, variance (0.25 + 1) / 8 - 9/256 = 31/256.
# Otsu: 0 against the rest, so its level is the lowest, 0.
BY_HAND = np.array([[0, 0, 0, 0], [0, 0, 1, 0.5]]).repeat(8, 0).repeat(8, 1)


@pytest.mark.parametrize(
    ("threshold", "level"),
    [
        (Threshold(0.3), 76),  # 0.3 * 255 = 76.5
        (Threshold(0), 0),
        (Threshold(0.999), 254),
        (Threshold(0, "deviation"), 47),  # 47.8
        (Threshold(1, "deviation"), 136),  # (0.1875 + 0.34799) * 255 = 136.5
        (Threshold(-1, "deviation"), 0),  # below the map
        (Threshold(5, "deviation"), 254),  # above it: the peak is left
        (Threshold(0, "between"), 47),
        (Threshold(0.5, "between"), 23),  # half of the way from 47.8 to 0
        (Threshold(1, "between"), 0),
        (Threshold(-0.5, "between"), 71),
        (Threshold(0.7, "geometric"), 0),  # Otsu's threshold is 0 here
    ],
    ids=str,
)
def test_levels_by_hand(threshold, level):
    mean, std, otsu = map_statistics(BY_HAND)
    assert (mean, std, otsu) == (0.1875, pytest.approx((31 / 256) ** 0.5), 0)
    assert threshold.level(BY_HAND) == level


def test_otsu_is_opencvs():
    scores = np.random.default_rng(0).random((20, 30)) ** 2
    expected, _ = cv2.threshold((scores * 255).astype(np.uint8), 0, 255, cv2.THRESH_BINARY + cv2.THRESH_OTSU)
    assert map_statistics(scores).otsu == expected / 255
    assert Threshold(1, "between").level(scores) == int(expected)


def test_levels_of_many_maps_at_once_are_those_of_each():
    rng = np.random.default_rng(1)
    maps = rng.random((5, 9, 9)) ** rng.uniform(0.5, 4, (5, 1, 1))
    statistics = MapStatistics(*np.array([map_statistics(m) for m in maps]).T[:, :, None])
    for rule, values in (
        ("global", [0, 0.3, 0.9]),
        ("deviation", [-2, 0.1, 7]),
        ("between", [-1, 0.2, 1]),
        ("geometric", [0, 0.9, 3]),
    ):
        levels = np.broadcast_to(cut_levels(rule, np.array(values), statistics), (5, 3))
        assert levels.tolist() == [[Threshold(v, rule).level(m) for v in values] for m in maps]


@pytest.mark.parametrize("text", ["0.3", "global:0.3", "between:-0.25", "deviation:1.5"])
def test_it_is_written_as_it_can_be_read(text):
    threshold = make_threshold(text)
    assert make_threshold(str(threshold)) == threshold
    assert str(threshold).endswith(text)
    stored = json.loads(json.dumps(threshold.__dict__))
    assert threshold_from_json(stored) == threshold


@pytest.mark.parametrize(
    "text", ["", "a", "between", "between:", ":0.3", "otsu:1", "1", "-0.1", "deviation:inf"]
)
def test_what_is_no_threshold_is_refused(text):
    with pytest.raises(InputError, match="threshold"):
        make_threshold(text)


@pytest.fixture(scope="module")
def measured():
    images = make_images(9, seed=3)
    with Evaluator(step=0.1, workers=1) as evaluator:
        accumulate(evaluator, images)
        return images, evaluator.compute()


@pytest.mark.parametrize("rule", ["deviation", "between", "geometric"])
def test_curves_are_those_of_the_literal_loops(measured, rule):
    images, metrics = measured
    values = metrics.values(rule)
    assert (values[0], values[-1]) == {"deviation": (-1, 2), "between": (-1, 1.5), "geometric": (0, 2)}[rule]
    assert np.diff(values) == pytest.approx(0.05)
    for position in range(0, len(values), 6):
        hits = {"gt_known": 0, "gt_known_published": 0}
        for image in images:
            scale = np.tile(224 / image["size"], 2)
            truth = [
                [int(v) for v in np.minimum(box * scale, [224, 224, 223, 223])] for box in image["boxes"]
            ]
            for name, label in (
                ("gt_known", image["label"]),
                ("gt_known_published", image["scores"].argmax()),
            ):
                scores, levels = literal_uint8(image["maps"][label])
                otsu = cv2.threshold(levels, 0, 255, cv2.THRESH_OTSU)[0] / 255
                share = {
                    "deviation": scores.mean() + values[position] * scores.std(),
                    "between": scores.mean() + values[position] * (otsu - scores.mean()),
                    "geometric": values[position] * (scores.mean() * otsu) ** 0.5,
                }[rule]
                (box,) = literal_boxes(levels, min(max(share, 0), 254 / 255), multiple=False)
                hits[name] += max(literal_iou(box, t) for t in truth) >= 0.5
        for name, count in hits.items():
            curve = metrics.rule_curves[rule][name]
            assert len(curve) == len(values)
            assert curve[position] == pytest.approx(100 * count / len(images)), (name, values[position])


@pytest.mark.parametrize("rule", ["global", "deviation", "between", "geometric"])
def test_figures_at_a_threshold_are_those_of_its_curve_and_its_boxes_the_localizers(measured, rule):
    images, metrics = measured
    for position in (0, 3, 7):
        threshold = metrics.threshold(float(metrics.values(rule)[position]), rule)
        figures = metrics.at(threshold)
        for name in ("gt_known", "top1_loc", "gt_known_published"):
            assert figures[name] == metrics.rule_curves[rule][name][position]
        for image, box in zip(images, metrics.boxes_at(threshold)[0], strict=True):
            found = locate(image["maps"][image["label"]], threshold, (224, 224)).box
            assert [223 if i > 1 and v == 224 else v for i, v in enumerate(found)] == box.tolist()


def test_heldout_takes_the_best_rule_and_of_equals_the_first_and_the_middle(measured):
    _, metrics = measured
    best = {rule: metrics.best("gt_known", rule) for rule in ("between", "geometric", "deviation", "global")}
    highest = max(value for value, _ in best.values())
    winner = next(rule for rule, (value, _) in best.items() if value == highest)
    result = protocols.heldout(metrics, metrics)
    assert result.threshold == Threshold(best[winner][1], winner)
    assert result.metrics["gt_known"].value == highest
    assert result.metrics["gt_known"].threshold == result.threshold
    assert result.metrics["max_box_acc"].threshold.rule == "global"
    assert str(result.threshold) in result.choice
    for rule in best:
        curve = metrics.rule_curves[rule]["gt_known"]
        equals = [v for v, hits in zip(metrics.values(rule), curve, strict=True) if hits == max(curve)]
        assert protocols.heldout(metrics, metrics, rule).threshold.value == equals[len(equals) // 2]
    with pytest.raises(InputError, match="best, between, geometric, deviation, global, got 'otsu'"):
        protocols.heldout(metrics, metrics, "otsu")


def test_a_new_rule_is_one_registration(monkeypatch, measured):
    images, before = measured
    monkeypatch.setattr(rules, "_rules", rules._rules.copy())
    # As `between`, but finer, so it is at least as good: of equals, boxes choose the newest.
    register_rule(
        Rule(
            "otsus_share",
            "mean + value * (Otsu's threshold - mean)",
            lambda maps, value: maps.mean + value * (maps.otsu - maps.mean),
            np.round(np.arange(-1, 1.501, 0.025), 3),
            low=-1,
            high=2,
        )
    )
    threshold = make_threshold("otsus_share:0.5")
    assert threshold.level(BY_HAND) == Threshold(0.5, "between").level(BY_HAND) == 23
    with pytest.raises(InputError, match=r"threshold must be in \[-1, 2\), got 2.0"):
        make_threshold("otsus_share:2")
    with Evaluator(step=0.1, workers=1) as evaluator:
        accumulate(evaluator, images)
        metrics = evaluator.compute()
    curve = metrics.rule_curves["otsus_share"]["gt_known"]
    assert curve[::2] == pytest.approx(before.rule_curves["between"]["gt_known"])
    assert metrics.at(threshold) == before.at(Threshold(0.5, "between"))
    assert protocols.heldout(metrics, metrics, "otsus_share").threshold.rule == "otsus_share"
    figures = {rule: metrics.best("gt_known", rule).figure for rule in reversed(rules.rule_names())}
    assert protocols.heldout(metrics, metrics).threshold.rule == max(figures, key=figures.get)
    assert "otsus_share" in set(choices.heldout_rules())
    assert EvaluationSettings(rule="otsus_share").rule == "otsus_share"


@pytest.mark.parametrize(
    ("stored", "given", "expected", "reason", "is_open"),
    [
        (None, None, DEFAULT_THRESHOLD, "the default", True),
        (Threshold(0.3), None, Threshold(0.3), "the checkpoint's", False),
        (Threshold(0.3), "between:0", Threshold(0, "between"), "given", False),
        (Threshold(0.3, interpolation="linear"), 0.0, Threshold(0.0, interpolation="linear"), "given", False),
    ],
    ids=["default", "checkpoint", "given", "given for its maps"],
)
def test_what_is_given_goes_before_the_checkpoints_and_that_before_the_default(
    stored, given, expected, reason, is_open
):
    assert threshold_to_use(stored, given) == (expected, reason, is_open)


def test_without_boxes_the_images_choose_in_place_of_heldout_alone():
    assert protocol_to_use("heldout", held_out_boxes=True) == "heldout"
    assert protocol_to_use("heldout", held_out_boxes=False) == "unboxed"
    assert [protocol_to_use(name, held_out_boxes=False) for name in ("fixed", "maxbox")] == [
        "fixed",
        "maxbox",
    ]


# Without boxes


def literal_separation(activation, tokens):
    """Return 1 - Ncut / 2 of one image (H, W), (D, H, W), by loops over pairs of tokens."""
    scores = (activation - activation.min()) / (activation.max() - activation.min())
    otsu = cv2.threshold((scores * 255).astype(np.uint8), 0, 255, cv2.THRESH_OTSU)[0] / 255
    x = tokens.reshape(len(tokens), -1).T  # tokens by channels
    x = x - x.mean(0)
    shares = []
    for value in SEPARATION_VALUES:
        inside = scores.ravel() > scores.mean() + value * (otsu - scores.mean())
        cut, of_part = 0.0, {True: 0.0, False: 0.0}
        for i, a in zip(inside, x, strict=True):
            for j, b in zip(inside, x, strict=True):
                weight = max(0, a @ b / np.sqrt(a @ a) / np.sqrt(b @ b))
                of_part[bool(i)] += weight
                cut += weight if i and not j else 0
        empty = inside.all() or not inside.any()
        shares.append(0 if empty else 1 - cut / of_part[True] / 2 - cut / of_part[False] / 2)
    return shares


@pytest.mark.parametrize("grid", [(6, 6), (3, 7), (2, 2)], ids=str)
def test_separation_is_the_normalised_cut_of_the_tokens(grid, monkeypatch):
    monkeypatch.setattr(
        "scm_fast.threshold.unboxed._GRAPH_ELEMENTS", 3000
    )  # a graph of 6 x 6 tokens has 1,296
    rng = np.random.default_rng(0)
    maps, tokens = rng.normal(-3, 1, (5, *grid)), rng.normal(5, 2, (5, 6, *grid))
    tokens[1] += 4 * maps[1]
    found = token_separation(maps.astype(np.float32), torch.tensor(tokens, dtype=torch.float32))
    assert found.shape == (5, len(SEPARATION_VALUES))
    for row, activation, of_image in zip(found, maps.astype(np.float32), tokens, strict=True):
        assert row == pytest.approx(literal_separation(activation.astype(np.float64), of_image), abs=1e-5)
    assert (SEPARATION_VALUES[0], SEPARATION_VALUES[-1], len(SEPARATION_VALUES)) == (-0.5, 1.2, 18)


def test_a_perfect_separation_is_one_and_an_empty_part_zero():
    activation = np.zeros((1, 4, 4))
    activation[0, 1:3, 1:3] = 1  # mean 0.25, Otsu 0
    tokens = torch.tensor(np.stack([7 * activation, 2 - activation], axis=1), dtype=torch.float32)
    found = token_separation(activation, tokens)[0]
    cuts = 0.25 * (1 - SEPARATION_VALUES)
    assert found == pytest.approx(np.where((cuts >= 0) & (cuts < 1), 1, 0))
    assert (found == 0).any(), "a cut below the map leaves no background"


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_maps_and_tokens_that_say_nothing_have_no_separation(value):
    rng = np.random.default_rng(0)
    maps, tokens = rng.random((2, 3, 3)), torch.rand(2, 5, 3, 3)
    maps[0], tokens[1] = value, value
    assert not token_separation(maps, tokens).any()


def test_a_peak_lies_between_the_values():
    for peak in (-0.32, 0.1, 0.234, 1.1):
        assert separation_peak(1 - (SEPARATION_VALUES - peak) ** 2) == pytest.approx(peak)
    assert separation_peak(SEPARATION_VALUES) == 1.2
    assert separation_peak(-SEPARATION_VALUES) == -0.5
    assert separation_peak(np.zeros(len(SEPARATION_VALUES))) == -0.5  # a flat curve is refused before


def test_the_choice_goes_from_the_default_to_the_peak_as_images_grow_many():
    assert str(DEFAULT_THRESHOLD) == "between:0.3"
    curve = 1 - (SEPARATION_VALUES - 0.5) ** 2
    for count, value in {FEWEST_IMAGES: 0.333, 50: 0.4, 200: 0.46, 10_000: 0.499}.items():
        choice = choose_unboxed(np.tile(curve, (count, 1)))
        assert choice.threshold == Threshold(value, "between")
        assert f"{count} images" in choice.reason
    assert choose_unboxed(np.tile(curve, (FEWEST_IMAGES, 1)), "linear").threshold.interpolation == "linear"
    # Images that say nothing do not count.
    few = np.concatenate([np.tile(curve, (FEWEST_IMAGES - 1, 1)), np.zeros((5, len(SEPARATION_VALUES)))])
    assert choose_unboxed(few).threshold == DEFAULT_THRESHOLD
    assert choose_unboxed(few).reason == "the default: 9 images are too few to choose by, 10 are needed"
    assert choose_unboxed(np.zeros((0, len(SEPARATION_VALUES)))).threshold == DEFAULT_THRESHOLD


@pytest.mark.parametrize("value", [0.0, -4.0, np.nan], ids=["zero", "constant", "NaN"])
def test_an_evaluation_of_maps_that_say_nothing_goes_on(value):
    images = make_images(4)
    for image in images[:2]:
        image["maps"][:] = value
    with Evaluator(step=0.1, workers=1) as evaluator:
        accumulate(evaluator, images)
        metrics = evaluator.compute()
    assert metrics.blank_maps == 2
    for result in (
        protocols.maxbox(metrics),
        protocols.heldout(metrics, metrics),
        protocols.unboxed(metrics, metrics),
    ):
        assert 0 <= result.metrics["gt_known"].value <= 50
    assert not metrics.boxes_at(DEFAULT_THRESHOLD)[0][:2].any(), "as the reference evaluator: no box"
