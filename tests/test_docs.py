"""README.md and docs/: links lead somewhere, Python snippets run, commands have the options that they show."""

import argparse
import ast
import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import timm.models._builder as timm_builder
import torch
from data_folders import write_cub, write_folder, write_image
from documents import anchors, blocks, broken_links, commands, figures, inline_commands, prose

from scm_fast import Localizer, create_model, load_model, save_model
from scm_fast.cli import COMMANDS
from scm_fast.cli.program import Parser
from scm_fast.data.layouts import registry as layouts
from scm_fast.models.architectures import registry as architectures
from scm_fast.models.export import export_model
from scm_fast.models.methods import registry as methods
from scm_fast.threshold import rules
from scm_fast.training.recipes import config_from_options

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
FOR_READERS = sorted((ROOT / "docs").glob("*.md"))
BESIDE_THE_CODE = [ROOT / folder / "README.md" for folder in ("bench", "scm_fast/ops", "tests/ptx")]
LAB = sorted((ROOT / "lab").glob("*.md"))
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *FOR_READERS,
    *BESIDE_THE_CODE,
    *LAB,
    ROOT / "docs" / "tables" / "kernels.md",
    ROOT / "docs" / "photos" / "LICENSES.md",
]
MOST_WORDS = dict.fromkeys([*FOR_READERS, *BESIDE_THE_CODE, *LAB], 1500) | {README: 900}
MOST_FIGURES = 3  # per hundred words of prose
SCRIPTS = {"train.py": "train", "evaluate.py": "evaluate"}


def with_code(*languages: str) -> list[Path]:
    return [page for page in PAGES if blocks(page.read_text(), *languages)]


def page_id(page: Path) -> str:
    return page.stem if page == README or page.stem != "README" else f"{page.parent.name}-README"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links(page):
    assert broken_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_code_has_a_language(page):
    """A block without one would be checked by nothing. Plain text is indented."""
    unnamed = [block.line for block in blocks(page.read_text()) if not block.language]
    assert unnamed == []


@pytest.mark.parametrize("page", MOST_WORDS, ids=page_id)
def test_length(page):
    assert len(page.read_text().split()) <= MOST_WORDS[page]


@pytest.mark.parametrize("page", [README, *FOR_READERS], ids=page_id)
def test_figures_per_hundred_words(page):
    """Numbers belong in tables and code, not in the running text."""
    text = prose(page.read_text())
    found = figures(text)
    assert len(found) <= MOST_FIGURES * len(text.split()) / 100, found


@pytest.mark.parametrize("page", [*FOR_READERS, *BESIDE_THE_CODE], ids=page_id)
def test_a_page_says_for_whom_it_is(page):
    """And what they can do after it, in its first lines."""
    _, _, text = page.read_text().partition("\n\n")
    first = text.split("\n\n")[0]
    assert first.startswith("For ")
    assert "\nAfter this page you " in first


def test_pages_are_few():
    assert len(FOR_READERS) <= 8


def test_pages_for_readers_have_no_generated_table():
    """Tables of more than twenty rows are files of their own, which pages link to."""
    for page in [README, *FOR_READERS]:
        tables = re.findall(r"(?:^\|.*\n)+", page.read_text(), re.M)
        assert all(table.count("\n") <= 22 for table in tables), page


def test_pictures_of_photos_have_their_licence():
    licences = (ROOT / "docs" / "photos" / "LICENSES.md").read_text()
    photos = {path.name for path in (ROOT / "docs" / "photos").glob("*.jpg")}
    assert photos == set(re.findall(r"^\| `(.+?)` \|", licences, re.M))


def test_every_picture_is_shown():
    shown = "".join(page.read_text() for page in PAGES)
    pictures = [path.name for path in (ROOT / "docs" / "images").iterdir()]
    assert [name for name in pictures if f"images/{name}" not in shown] == []


def test_the_tree_names_every_folder():
    listed = set(re.findall(r"^\| `(\w+)/` \|", README.read_text(), re.M))
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders = {line.split("/")[0] for line in tracked.splitlines() if "/" in line}
    assert listed == {folder for folder in folders if not folder.startswith(".")}


@pytest.fixture(scope="module")
def user_folder(tmp_path_factory) -> Path:
    """The folder that the pages assume: photos/, CUB_200_2011/, my_images/ and a trained model in runs/."""
    folder = tmp_path_factory.mktemp("user")
    for number in range(3):
        write_image(folder / "photos" / f"{number}.jpg", (90, 70), seed=number)
    write_cub(folder / "CUB_200_2011", classes=6)
    write_folder(folder / "my_images")
    small = {"depth": 1, "embed_dim": 48, "num_heads": 3}
    torch.manual_seed(0)
    model = create_model("deit_tiny_patch16_224", 6, backbone_options=small)
    for name in ("birds", "mine"):
        save_model(model, folder / "runs" / name / "last")
    if importlib.util.find_spec("onnxruntime"):
        export_model(model, folder / "birds.onnx")
    return folder


CONTINUES = re.compile(r"# continues .*above")


def programs(page: Path) -> list[list]:
    """Return the programs that a reader copies: a snippet alone, or after the one that it says it continues."""
    found: list[list] = []
    for block in blocks(page.read_text(), "python"):
        found.append([*(found[-1] if CONTINUES.match(block.text) else ()), block])
    return found


SNIPPETS = [
    pytest.param(page, program, id=f"{page_id(page)}-{program[-1].line}")
    for page in with_code("python")
    for program in programs(page)
]


@pytest.mark.parametrize(("page", "program"), SNIPPETS)
def test_python_snippets_run(page, program, user_folder, monkeypatch):
    """Each by itself. Weights are not downloaded: pretrained=True gives random ones here."""
    monkeypatch.chdir(user_folder)
    monkeypatch.setattr(timm_builder, "load_pretrained", lambda *args, **kwargs: None)
    monkeypatch.setattr(layouts, "_layouts", dict(layouts._layouts))  # pages register some of their own
    monkeypatch.setattr(architectures, "_architectures", list(architectures._architectures))
    monkeypatch.setattr(methods, "_methods", dict(methods._methods))
    monkeypatch.setattr(rules, "_rules", dict(rules._rules))
    torch.manual_seed(0)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in program:
        padded = "\n" * (block.line - 1) + block.text  # so that a traceback has the page's lines
        exec(compile(padded, str(page), "exec"), namespace)


@pytest.mark.parametrize("method", ["scm", "sat"])
def test_the_onnx_example_needs_no_package_of_ours(user_folder, tmp_path, method):
    """The example finds Localizer's boxes in its own process, on a photo that neither has to make smaller."""
    pytest.importorskip("onnxruntime")
    shutil.copytree(user_folder, tmp_path, dirs_exist_ok=True)
    user_folder = tmp_path
    if method == "sat":  # without semantic maps
        small = {"depth": 3, "embed_dim": 48, "num_heads": 3}
        torch.manual_seed(0)  # or the map is another one after every other test
        model = create_model("deit_tiny_patch16_224", 6, "sat", backbone_options=small)
        export_model(
            load_model(save_model(model, user_folder / "runs/birds/last")), user_folder / "birds.onnx"
        )
    localizer = Localizer.from_checkpoint(user_folder / "runs/birds/last")
    photo = user_folder / "photos/0.jpg"
    height, width = localizer.model.config.image_size
    write_image(photo, (width, height), seed=0)
    page = ROOT / "docs" / "start.md"
    (example,) = [block.text for block in blocks(page.read_text(), "python") if "onnxruntime" in block.text]
    assert len(ast.parse(example).body) <= 15, "lines, but for those that are broken"
    check = "import sys; assert not {'torch', 'timm', 'scm_fast'} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"{example}\n{check}"], cwd=user_folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    name, *box = done.stdout.split()
    (prediction,) = localizer.predict(photo)
    assert name == prediction.classes[0].name
    shares = [corner / side for corner, side in zip(prediction.box, prediction.size * 2, strict=True)]
    assert [float(share) for share in box] == pytest.approx(shares, abs=0.02)


@pytest.mark.parametrize("page", with_code("sh", "bash"), ids=page_id)
def test_shell_blocks_name_what_exists(page):
    for block in blocks(page.read_text(), "sh", "bash"):
        for words in commands(block.text):
            check_command(words, whole=True)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_in_the_text_name_what_exists(page):
    for words in inline_commands(page.read_text()):
        check_command(words, whole=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_of_help_parse(command):
    module = importlib.import_module(f"scm_fast.cli.{command.replace('-', '_')}")
    examples = re.findall(r"^  ((?:scm-fast|torchrun) .*?)(?:   .*)?$", module.__doc__, re.M)
    assert examples
    for example in examples:
        check_command(commands(example)[0], whole=True)


def check_command(words: list[str], whole: bool) -> None:
    """Fail if a command names an option, a file of this repository or a target that is not there.

    whole: the command stands as one would type it, with everything that it needs.
    """
    program, arguments = words[0], words[1:]
    if program == "torchrun":
        start = next((i for i, word in enumerate(arguments) if word in ("-m", *SCRIPTS)), None)
        if start is None:
            assert not whole, f"{words} starts nothing"
            return
        program, arguments = "python", arguments[start:]
    if program == "python":
        if arguments[:2] == ["-m", "scm_fast.cli"]:
            program, arguments = "scm-fast", arguments[2:]
        elif arguments[0] == "-m":
            assert importlib.util.find_spec(arguments[1]), f"no module {arguments[1]}"
            return
        elif arguments[0] in SCRIPTS:
            program, arguments = "scm-fast", [SCRIPTS[arguments[0]], *arguments[1:]]
    if program == "scm-fast":
        check_scm_fast(arguments, whole)
    elif program == "python":
        assert arguments[0] == "-c" or (ROOT / arguments[0]).is_file(), words
    elif program == "pytest":
        check_paths([word for word in arguments if "/" in word])
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert {word for word in arguments if "=" not in word} <= set(targets), words
    elif program == "pip":
        check_pip(arguments)
    elif "/" in program:
        check_paths([program])
    else:
        assert program in ("cd", "git", "pre-commit", "sbatch", "ls", "open", "tensorboard"), (
            f"unchecked: {words}"
        )


def check_scm_fast(arguments: list[str], whole: bool) -> None:
    if arguments[0] in ("--help", "--version"):
        return
    assert arguments[0] in COMMANDS, f"no command {arguments[0]}"
    module = importlib.import_module(f"scm_fast.cli.{arguments[0].replace('-', '_')}")
    parser = Parser(f"scm-fast {arguments[0]}", None)
    module.add_arguments(parser)
    options = {word.split("=")[0].strip("[]") for word in arguments[1:] if word.lstrip("[").startswith("--")}
    unknown = options - set(parser._option_string_actions)
    assert not unknown, f"{arguments}: unknown options {unknown}"
    if whole and "--help" not in options:
        parsed = parser.parse_args(arguments[1:])
        if arguments[0] == "train":
            check_recipe(parsed)


def check_recipe(parsed: argparse.Namespace) -> None:
    if parsed.config is not None and "/" in parsed.config:
        check_paths([parsed.config])
        parsed.config = str(ROOT / parsed.config)
    config_from_options(parsed)


def check_paths(paths: list[str]) -> None:
    missing = [path for path in paths if not (ROOT / path.split("::")[0]).exists()]
    assert not missing, f"not in this repository: {missing}"


def check_pip(arguments: list[str]) -> None:
    """Extras and files of `pip install` are there."""
    declared = (
        (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("\n[")[0]
    )
    extras = set(re.findall(r"^(\w+) = \[", declared, re.M))
    for word in arguments:
        match = re.fullmatch(r"(?:\.|scm-fast)\[([\w,]+)\]", word)
        assert match is None or set(match[1].split(",")) <= extras, f"unknown extra in {word}"
    if "-c" in arguments:
        check_paths([arguments[arguments.index("-c") + 1]])


# Words that begin no sentence of what a thing does or is: prepositions, relatives and questions.
FRAGMENTS = re.compile(
    r"(about|above|according|across|after|against|along|among|as|at|because|before|behind|below|beneath|beside|between"
    r"|beyond|but|by|despite|down|during|except|for|from|how|if|in|inside|into|like|near|of|off|on|onto|out|outside"
    r"|over|per|since|so|than|that|through|throughout|till|to|toward|under|until|unto|up|upon|what|when|whence|where"
    r"|whereas|whether|which|while|who|whoever|whom|whose|why|with|within|without)\b",
    re.IGNORECASE,
)


def fragments(source: str) -> list[str]:
    """First lines of docstrings that open with a preposition, a relative or a question word."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds))
    first = [text.splitlines()[0] for node in nodes if (text := ast.get_docstring(node))]
    return [line for line in first if FRAGMENTS.match(line)]


def test_docstrings_are_phrases():
    found = {}
    for file in sorted(ROOT.rglob("*.py")):
        name = file.relative_to(ROOT)
        if name.parts[0] not in ("scm_fast", "kernels", "bench", "tests", "docs"):
            continue
        lines = fragments(file.read_text())
        if lines:
            found[name.as_posix()] = lines
    assert found == {}


class TestTheChecks:
    """The checks themselves find what is wrong."""

    def test_broken_links(self, tmp_path):
        page = tmp_path / "page.md"
        page.write_text(
            "# A b: `c`\n[ok](#a-b-c) [ok](other.md#x) [no](#nothing) [no](gone.md) [no](other.md#y)\n"
            "![no](picture.png) [not followed](https://example.org) `[code](gone.md)`\n"
        )
        (tmp_path / "other.md").write_text("## X\n## X\n")
        assert broken_links(page) == ["#nothing", "gone.md", "other.md#y", "picture.png"]
        assert anchors("## X\n## X\n") == {"x", "x-1"}

    def test_fragments(self):
        source = 'def a():\n    """Of a map, its mean."""\n\n\ndef b():\n    """Return the mean."""\n'
        assert fragments(source) == ["Of a map, its mean."]

    def test_prose_and_figures(self):
        text = "# T 1\n\nTake 3.5x of `4` at [five](a6.md), 1,000 or 7-8.\n\n| 9 |\n|---|\n\n"
        text += "```sh\nls 10\n```\n\n    11\n"
        assert figures(prose(text)) == ["1", "3.5", "1,000", "7", "8"]

    @pytest.mark.parametrize(
        "line",
        [
            "scm-fast train --epoch 3",
            "scm-fast localise photos",
            "scm-fast predict photos",
            "scm-fast predict photos --checkpoint runs/birds --out found --format cocos",
            "python train.py --config configs/none.yaml",
            "torchrun --nproc-per-node 2 train.py --method tscan",
            "torchrun --nproc-per-node 2 -m scm_fast.cli evaluate --checkpoint x",
            "python -m scm_fast.kernel.report",
            "pytest bench/bench_none.py --benchmark-only",
            "make tests",
            "pip install 'scm-fast[cuda]'",
            "configs/none.sh",
            "localise photos",
        ],
    )
    def test_wrong_commands(self, line):
        with pytest.raises((AssertionError, SystemExit, ValueError, ModuleNotFoundError)):
            check_command(commands(line)[0], whole=True)
