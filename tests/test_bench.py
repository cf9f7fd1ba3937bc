"""Tables of benchmark results, and `scm-fast bench` as a user runs it."""

import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from scm_fast.benchmarks.regressions import find_regressions
from scm_fast.benchmarks.table import (
    COLUMNS,
    EAGER_TIME,
    PEAK_MEMORY,
    TIME,
    WORKING_MEMORY,
    Case,
    Row,
    format_table,
    read_table,
    write_table,
)
from scm_fast.cli import main
from scm_fast.errors import InputError

CASE = {
    "op": "spatial_calibration",
    "mode": "both",
    "batch": 8,
    "classes": 200,
    "dtype": "float32",
    "device": "a CPU",
}


def reference_row(seconds: float = 1.0, side: int = 14, **columns) -> Row:
    figures = {"p20": 0.95 * seconds, "p50": seconds, "p80": 1.05 * seconds, "rounds": 9}
    return Row(
        **CASE, height=side, width=side, backend="reference", against="reference", **figures, **columns
    )


def torch_row(ratio: float, spread: float = 0.05, seconds: float = 1.0, side: int = 14) -> Row:
    """A backend so many times as fast as a reference that takes `seconds`."""
    low, high = ratio * (1 - spread), ratio * (1 + spread)
    return dataclasses.replace(
        reference_row(seconds / ratio, side),
        backend="torch",
        ratio_p20=low,
        ratio_p50=ratio,
        ratio_p80=high,
    )


def memory_row(count: float, backend: str = "torch", side: int = 14) -> Row:
    figures = {"p20": count, "p50": count, "p80": count, "rounds": 1}
    row = reference_row(side=side)
    return dataclasses.replace(row, backend=backend, metric=PEAK_MEMORY, unit="bytes", **figures)


def not_run_row(reason: str = "no GPU, none at all") -> Row:
    return Row(**CASE, height=14, width=14, backend="triton", not_run=reason)


def test_a_table_is_read_as_it_was_written(tmp_path):
    rows = [reference_row(commit="abc-dirty"), torch_row(29.5), memory_row(2**20), not_run_row()]
    path = tmp_path / "new folder" / "a.csv"
    write_table(path, rows)
    found = read_table(path)
    for row, expected in zip(found, rows, strict=True):
        for name in COLUMNS:
            value = getattr(expected, name)
            assert getattr(row, name) == (pytest.approx(value) if isinstance(value, float) else value)
    assert path.read_text().splitlines()[0].split(",")[:3] == ["op", "mode", "batch"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"op,backend\nspatial_calibration,torch\n", "not a benchmark table, it has no column mode"),
        (b"", "not a benchmark table"),
        (b"\xff\xfe\x00", "not a CSV file"),
        (",".join(COLUMNS).encode() + b"\n", "the table has no rows"),
    ],
    ids=["other columns", "empty", "binary", "no rows"],
)
def test_what_is_no_table_is_said(tmp_path, content, message):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        read_table(path)
    assert str(path) in str(error.value)


def test_a_cell_that_is_no_number_is_named(tmp_path):
    path = tmp_path / "a.csv"
    write_table(path, [torch_row(2.0)])
    path.write_text(path.read_text().replace(",14,14,", ",14,many,"))
    with pytest.raises(InputError, match=r"line 2: width must be a number, got 'many'"):
        read_table(path)


def test_the_printed_table():
    rows = [reference_row(0.25), memory_row(3 * 2**20, "reference"), torch_row(10.0), not_run_row()]
    lines = format_table(rows).splitlines()
    assert lines[1].split("  ", 1)[0] == "spatial_calibration"
    assert "8 x 200 x 14 x 14" in lines[1]
    assert "250 ms (238 - 262)" in lines[1]
    assert "3 MiB" in lines[1]
    assert "torch" in lines[2]
    assert "10x (9.5 - 10.5)" in lines[2]
    assert lines[3].strip() == "triton     not run: no GPU, none at all"
    assert len(lines) == 4


def test_eager_times_have_columns_of_their_own():
    rows = [reference_row(0.25), torch_row(10.0)]
    eager = [dataclasses.replace(row, metric=EAGER_TIME) for row in (reference_row(0.5), torch_row(4.0))]
    lines = format_table([*rows, *eager]).splitlines()
    assert len(lines) == 3
    assert "eager time (p20 - p80)" in lines[0]
    assert "250 ms (238 - 262)" in lines[1]
    assert "500 ms (475 - 525)" in lines[1]
    assert "10x (9.5 - 10.5)" in lines[2]
    assert "4x (3.8 - 4.2)" in lines[2]
    assert "eager" not in format_table(rows)


def test_large_numbers_have_no_exponent():
    lines = format_table([reference_row(0.9999), memory_row(1023 * 2**20, "reference"), torch_row(1234.0)])
    assert "1000 ms (950 - 1050)" in lines
    assert "1023 MiB" in lines
    assert "1234x (1172 - 1296)" in lines


def test_shape_of_a_case():
    case = Case("newton_schulz", "both", 16, None, 14, 14, "float32", "p = 16")
    assert case.shape == "16 x 14 x 14, p = 16"
    assert dataclasses.replace(case, dtype="bfloat16", variant="").shape == "16 x 14 x 14, bfloat16"


def test_slower_beyond_the_spread():
    found = find_regressions([reference_row(), torch_row(30)], [reference_row(), torch_row(15)])
    assert [(one.before.backend, one.factor) for one in found.worse] == [("torch", pytest.approx(2))]
    assert found.better == []
    assert found.compared == 1
    back = find_regressions([torch_row(15)], [torch_row(30)])
    assert [one.factor for one in back.better] == [pytest.approx(0.5)]
    assert back.worse == []


def test_within_the_spread():
    assert find_regressions([torch_row(30, spread=0.3)], [torch_row(20, spread=0.3)]).worse == []
    assert find_regressions([torch_row(30, spread=0.1)], [torch_row(20, spread=0.1)]).worse


def test_within_the_tolerance():
    before, after = [torch_row(30, spread=0.01)], [torch_row(27, spread=0.01)]
    assert find_regressions(before, after).worse == []
    assert find_regressions(before, after, tolerance=0.05).worse


def test_a_busier_machine_is_not_a_slower_package():
    """Everything takes three times as long, the reference too: the ratio is what counts."""
    before, after = ([reference_row(s), torch_row(30, seconds=s)] for s in (1.0, 3.0))
    found = find_regressions(before, after)
    assert found.worse == []
    assert found.compared == 1


def test_without_a_reference_the_time_itself_counts():
    alone = dataclasses.replace(reference_row(), backend="torch", against="")
    slower = dataclasses.replace(reference_row(1.5), backend="torch", against="")
    assert [one.factor for one in find_regressions([alone], [slower]).worse] == [pytest.approx(1.5)]


def test_more_memory_is_worse():
    found = find_regressions([memory_row(1000)], [memory_row(1050)])
    assert [one.after.metric for one in found.worse] == [PEAK_MEMORY]
    assert find_regressions([memory_row(1000)], [memory_row(1010)]).worse == []


def test_rows_of_one_table_only():
    before = [torch_row(30), torch_row(100, side=28)]
    after = [torch_row(30), dataclasses.replace(not_run_row(), backend="torch", height=28, width=28)]
    found = find_regressions(before, after)
    assert [row.height for row in found.only_before] == [28]
    assert found.only_after == []
    assert found.worse == []


@pytest.fixture
def bench(capfd, monkeypatch):
    """Runs the command; gives (exit status, what it and its processes printed, what they said on stderr)."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # its pytest is no worker of ours

    def run(*arguments):
        status = main(["bench", *map(str, arguments)])
        printed = capfd.readouterr()
        return status, printed.out, printed.err

    return run


def write_two(folder: Path, before: list[Row], after: list[Row]) -> tuple[Path, Path]:
    first, second = folder / "a.csv", folder / "b.csv"
    write_table(first, before)
    write_table(second, after)
    return first, second


def test_compare_exits_1_when_something_is_slower(tmp_path, bench):
    status, out, err = bench("--compare", *write_two(tmp_path, [torch_row(30)], [torch_row(15)]))
    assert (status, err) == (1, "")
    assert "1 of 1 worse beyond the spread:" in out
    assert "spatial_calibration, 8 x 200 x 14 x 14, both, torch, time: 2.00x" in out


def test_compare_exits_0_when_nothing_is(tmp_path, bench):
    tables = write_two(tmp_path, [torch_row(30), torch_row(9, side=28)], [torch_row(29)])
    status, out, err = bench("--compare", *tables)
    assert (status, err) == (0, "")
    assert "0 of 1 worse beyond the spread" in out
    assert "1 measured in the first table only\n  spatial_calibration, 8 x 200 x 28 x 28" in out


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (dataclasses.replace(torch_row(15), device="a GPU"), "different devices: a CPU and a GPU"),
        (torch_row(15, side=20), "no measurement in common"),
        (dataclasses.replace(not_run_row(), backend="torch"), "no measurement in common"),
    ],
    ids=["device", "shape", "not run"],
)
def test_compare_refuses_tables_that_cannot_be_compared(tmp_path, bench, after, message):
    status, out, err = bench("--compare", *write_two(tmp_path, [torch_row(30)], [after]))
    assert (status, out) == (2, "")
    assert message in err


def test_compare_with_no_such_file(tmp_path, bench):
    status, _, err = bench("--compare", tmp_path / "none.csv", tmp_path / "none.csv")
    assert status == 2
    assert "none.csv" in err


def plottable() -> list[Row]:
    rows = []
    for side, seconds, ratio in ((14, 0.1, 30), (28, 4.0, 150), (56, 60.0, 900)):
        rows += [reference_row(seconds, side), torch_row(ratio, seconds=seconds, side=side)]
        rows += [memory_row(1e7 * side**2, "reference", side), memory_row(1e4 * side**2, "torch", side)]
    return [*rows, not_run_row()]


def test_plot_writes_readable_pictures(tmp_path, bench):
    pytest.importorskip("matplotlib")
    table = tmp_path / "a.csv"
    write_table(table, plottable())
    status, out, err = bench("--plot", table, "--out", tmp_path / "pictures")
    assert (status, err) == (0, "")
    names = ["speedup.png", "memory.png", "growth.png"]
    assert out.split() == [str(tmp_path / "pictures" / name) for name in names]
    for name in names:
        with Image.open(tmp_path / "pictures" / name) as picture:
            assert picture.width > 1000
            assert len(picture.convert("RGB").getcolors(1 << 24)) > 10


def test_plot_leaves_out_what_the_table_does_not_have(tmp_path, bench):
    pytest.importorskip("matplotlib")
    table = tmp_path / "a.csv"
    write_table(table, [reference_row(), torch_row(30)])
    assert bench("--plot", table)[1].split() == [str(tmp_path / "speedup.png")]
    write_table(table, [not_run_row()])
    status, _, err = bench("--plot", table)
    assert status == 2
    assert "no ratio, no memory and no series" in err


def test_plot_without_matplotlib(tmp_path, bench, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    table = tmp_path / "a.csv"
    write_table(table, plottable())
    status, _, err = bench("--plot", table)
    assert status == 2
    assert "pip install 'scm-fast[plots]'" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["laplacian", "--plot"], "--plot and --compare read tables"),
        (["--compare", "a.csv", "b.csv", "--full"], "--plot and --compare read tables"),
        (["--out", "docs"], "--out is the folder for --plot"),
        (["--compare", "a.csv", "b.csv", "--tolerance", "-1"], "--tolerance must not be negative"),
    ],
)
def test_options_that_do_not_go_together(bench, arguments, message):
    status, out, err = bench(*arguments)
    assert (status, out) == (2, "")
    assert message in err


def test_outside_a_clone(tmp_path, bench, monkeypatch):
    monkeypatch.setattr("scm_fast.cli.bench.BENCH", tmp_path / "bench")
    status, _, err = bench()
    assert status == 2
    assert "clone the repository" in err


def test_an_op_that_there_is_not(bench):
    status, _, err = bench("convolution")
    assert status == 2
    assert "no benchmark of 'convolution'; there are activation_diffusion, cls_attention" in err


def test_a_run_writes_the_table(tmp_path, bench):
    """One real case, where Triton's interpreter is on: it must not be timed."""
    table = tmp_path / "laplacian.csv"
    status, out, err = bench("laplacian", "-k", "forward-32-14", "--results", table)
    assert status == 0, out + err
    assert f"written to {table}" in out
    rows = read_table(table)
    assert {(row.op, row.mode, row.batch, row.height, row.width) for row in rows} == {
        ("laplacian", "forward", 32, 14, 14)
    }
    by_key = {(row.backend, row.metric): row for row in rows}
    assert by_key["triton", TIME].not_run
    assert by_key["triton", TIME].p50 is None
    assert "--full" in by_key["compiled reference", TIME].not_run
    for backend in ("reference", "torch"):
        low, middle, high = by_key[backend, TIME].range
        assert 0 < low <= middle <= high < 60
        assert by_key[backend, TIME].rounds >= 5
    low, middle, high = by_key["torch", TIME].ratio_range
    assert 0 < low <= middle <= high
    assert by_key["torch", TIME].against == "reference"
    # L itself, which both return, is 32 x 196 x 196 floats.
    size = 32 * 196**2 * 4
    assert size <= by_key["torch", PEAK_MEMORY].p50 < by_key["reference", PEAK_MEMORY].p50
    working = by_key["torch", PEAK_MEMORY].p50 - size
    assert by_key["torch", WORKING_MEMORY].p50 == pytest.approx(working, rel=1e-4)
    assert all(row.torch and row.python and row.scm_fast and row.date and row.device for row in rows)


def test_nothing_selected(bench):
    status, _, err = bench("laplacian", "-k", "no_such_case")
    assert status == 2
    assert "no benchmark was selected by laplacian with -k 'no_such_case'" in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu(bench):
    status, out, err = bench("laplacian", "--device", "cuda")
    assert (status, out) == (2, "")
    assert "device 'cuda' was asked for, but torch sees 0 GPUs" in err
