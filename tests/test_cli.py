"""All commands share: help that teaches, errors in a line, exit statuses, quiet pipes, installed recipes."""

import importlib
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from data_folders import write_folder

from scm_fast import InputError
from scm_fast.cli import COMMANDS, help_text, main, program
from scm_fast.training.recipes import config_from_options

SCM_FAST = [sys.executable, "-m", "scm_fast.cli"]


def run(*arguments, **options):
    return subprocess.run(
        [*SCM_FAST, *map(str, arguments)], capture_output=True, text=True, timeout=240, **options
    )


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]], ids=str)
def test_help_lists_every_command(arguments, capsys):
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    for name, summary in COMMANDS.items():
        assert f"  {name} " in shown
        assert summary in shown
    assert "exit status: 0" in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_examples(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert f"\n  scm-fast {command}" in shown
    assert not any(len(line) > 116 for line in shown.splitlines())


def test_mistyped_command(capsys):
    assert main(["pedict"]) == 2
    assert capsys.readouterr().err == (
        "scm-fast: error: no command 'pedict'; did you mean 'predict'? (scm-fast --help)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "a.jpg", "--chekpoint", "x"], "unknown option --chekpoint; did you mean --checkpoint?"),
        (["predict", "a.jpg", "--out=x"], "one of the arguments --checkpoint --model is required"),
        (["evaluate", "--check", "x"], "unknown option --check"),
        (["check-data", ".", "--layout", "cube"], "invalid choice: 'cube'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_options_are_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"scm-fast {arguments[0]}: error: ")
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--help"], ["--version"], ["info", "--help"], ["predict", "--help"], ["localise"]),
        *([command, "--no-such-option"] for command in COMMANDS),
        ["evaluate", "--data", "birds"],
    ],
    ids=" ".join,
)
def test_help_and_wrong_options_need_no_torch(arguments):
    """Half a second of computing, in a process of its own."""
    code = (
        "import sys, time\nfrom scm_fast.cli import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit: pass\n"
        "print('torch' in sys.modules, time.process_time(), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    imported, seconds = done.stderr.splitlines()[-1].split()
    assert imported == "False"
    assert float(seconds) < 0.5


def test_the_advice_of_help_is_followed():
    """The commands that it shows parse, and train one's own images by the recipe for them."""
    for line in re.findall(r"^  scm-fast ([a-z-]+) (.*?)(?:   .*)?$", help_text(), re.M):
        command, arguments = line[0], line[1].split()
        parser = program.Parser(command, None)
        module = importlib.import_module(f"scm_fast.cli.{command.replace('-', '_')}")
        module.add_arguments(parser)
        parsed = parser.parse_args(arguments)
        if "--data" in arguments:
            assert config_from_options(parsed).backbone == "deit_tiny_patch16_224"


class OutOfMemoryError(RuntimeError):
    """An error named as torch's, which cannot be raised here: there is no GPU."""


def _raise(error):
    raise error


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (InputError("photos: no such folder"), 2, "scm-fast x: error: photos: no such folder\n"),
        (program.Stop("the loss is NaN", 1), 1, "scm-fast x: the loss is NaN\n"),
        (FileNotFoundError(2, "No such file", "a.json"), 2, "scm-fast x: error: a.json: No such file\n"),
        (OSError(28, "No space left on device"), 2, "scm-fast x: error: disk: No space left on device\n"),
        (OutOfMemoryError("CUDA out of memory. Tried to"), 2, "CUDA out of memory; use smaller batches"),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_exit_statuses(error, status, message, capsys):
    assert program.guarded("scm-fast x", lambda: _raise(error)) == status
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError("a bug"), ValueError("a bug"), OSError("a bug")], ids=repr)
def test_bugs_keep_their_traceback(error):
    with pytest.raises(type(error), match="a bug"):
        program.guarded("scm-fast x", lambda: _raise(error))


def test_reader_that_goes_away_is_no_error():
    """`scm-fast check-data synthetic --split val | head -0`, the reader gone before anything is written."""
    command = [*SCM_FAST, "check-data", "synthetic", "--split", "val"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait(240) == 128 + signal.SIGPIPE
    assert said == ""


def test_ctrl_c_is_quiet(tmp_path):
    """Stopped while it waits for something: here, for a named pipe that nobody writes."""
    os.mkfifo(tmp_path / "recipe.yaml")
    process = subprocess.Popen(
        [*SCM_FAST, "train", "--config", str(tmp_path / "recipe.yaml")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # The command waits in open(); a writer that does not wait succeeds once it is there.
    for _ in range(2400):
        try:
            writer = os.open(tmp_path / "recipe.yaml", os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError:
            time.sleep(0.1)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=240)
    os.close(writer)
    assert process.returncode == 130
    assert said == ("", "")


def test_module_under_torchrun(tmp_path):
    """Users of the wheel have no train.py and run this on several GPUs; one process says what is wrong."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = subprocess.run(
        [*torchrun, "-m", "scm_fast.cli", "train", "--data", "nowhere", "--device", "cpu"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 1  # torchrun's own
    assert result.stderr.count("scm-fast train: error: nowhere: no such folder") == 1


def test_no_bars_or_colours_in_files(tmp_path):
    """No control characters when the output is no terminal: a line at most, of what became of the folder."""
    options = ["--epochs", "1", "--warmup-epochs", "0", "--image-size", "16"]
    write_folder(tmp_path / "set")
    result = run(
        *("train", "--data", "set", "--out", "run", "--device", "cpu", "--pretrained", "false", *options),
        *("--backbone", "vit_tiny_patch16_224", "--global-batch", "1", "--workers", "0"),
        *("--backbone-options", "{patch_size: 8, embed_dim: 16, depth: 1, num_heads: 1}"),
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith("set: no split folders: ")
    assert not set(result.stdout + result.stderr) & set("\r\x1b")
