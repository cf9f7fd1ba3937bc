"""Commands answer at once, before torch is imported, where they can; hostile files end with a sentence."""

import resource
import subprocess
import sys
import time

import pytest

from scm_fast import InputError, choices, create_model, load_model, save_model
from scm_fast.backends import BACKENDS
from scm_fast.data import opening
from scm_fast.data.layouts import layout_names
from scm_fast.devices import AMP_DTYPES
from scm_fast.evaluation.protocols import METRIC_NAMES, PROTOCOLS
from scm_fast.models.maps import map_names
from scm_fast.models.methods import method_names
from scm_fast.spatial_calibration import PRESETS
from scm_fast.threshold import BEST, rules_to_choose
from scm_fast.training.recipes import read_yaml

SAY = """
import sys
from scm_fast.cli import main
try:
    main(sys.argv[1:])
finally:  # argparse ends the process itself
    print("imported", sorted({"torch", "numpy", "cv2", "timm"} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "--help"], "how it is trained, and which map it cuts"),
        (["train", "--lr", "x"], "lr: input should be a valid number, unable to parse string as a number"),
        (["train", "--epochs", "0", "--data", "x"], "epochs: input should be greater than 0, got 0"),
        (["train", "--epoch", "3"], "unknown option --epoch; did you mean --epochs?"),
    ],
)
def test_answers_at_once(arguments, said):
    """The answer takes at most half a second of a CPU, whatever else it has to do."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", SAY, *arguments], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert said in " ".join((done.stdout + done.stderr).split())
    assert done.stdout.splitlines()[-1] == "imported []"
    assert sum(getattr(after, kind) - getattr(before, kind) for kind in ("ru_utime", "ru_stime")) < 0.5


def test_the_names_are_those_of_the_modules_that_know_them(monkeypatch):
    """Names come from a list, without torch."""
    for asked in (True, False):
        if not asked:
            monkeypatch.setattr(choices, "_asked", lambda *arguments: None)
        assert sorted(choices.layouts()) == sorted(["auto", *layout_names()])
        assert list(choices.methods()) == list(method_names())
        assert list(choices.maps()) == list(map_names())
        assert tuple(choices.heldout_rules()) == rules_to_choose()
        for option in opening.SOURCES:
            assert choices.takers(option) == ", ".join(opening.takers(option))
    assert list(choices.presets()) == list(PRESETS)
    assert tuple(choices.backends()) == ("auto", *BACKENDS)
    assert tuple(choices.precisions()) == ("auto", *AMP_DTYPES)
    assert list(choices.protocols()) == list(PROTOCOLS)
    assert list(choices.metrics()) == list(METRIC_NAMES)
    assert choices.BEST == BEST


def test_aliases_that_stand_for_millions_of_values(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    begin = time.monotonic()
    with pytest.raises(InputError, match=r"bomb\.yaml: .*aliases stand for more than 10000 values"):
        read_yaml(tmp_path / "bomb.yaml")
    assert time.monotonic() - begin < 2
    (tmp_path / "own.yaml").write_text("a: &a [1, 2]\nb: *a")
    assert read_yaml(tmp_path / "own.yaml") == {"a": [1, 2], "b": [1, 2]}, "a few are fine"


@pytest.mark.parametrize(
    "text", ["a: " + "[" * 5000, "a: &a [*a]", "? [a]\n: b"], ids=["deep", "itself", "key"]
)
def test_strange_yaml(tmp_path, text):
    (tmp_path / "strange.yaml").write_text(text)
    with pytest.raises(InputError, match=r"strange\.yaml: not a YAML file"):
        read_yaml(tmp_path / "strange.yaml")


def test_a_deeply_nested_config_of_a_model(tmp_path):
    small = {"depth": 1, "embed_dim": 48, "num_heads": 3}
    folder = save_model(create_model("deit_tiny_patch16_224", 3, backbone_options=small), tmp_path)
    (folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"config\.json: not a JSON file"):
        load_model(folder)
