"""The emulator itself: on PTX written by hand, and on compiled kernels that were spoilt on purpose."""

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from calibration_checks import module, random_maps, results
from ptx.counts import Counts
from ptx.critical_path import critical_path
from ptx.driver import Emulator, emulated, uninitialised
from ptx.errors import (
    BarrierDivergence,
    EmulationError,
    OutOfBounds,
    Race,
    UninitialisedRead,
    UnknownInstruction,
)

HEADER = """.version 8.0
.target sm_90
.extern .shared .align 16 .b8 global_smem[];
.visible .entry example_kernel(
	.param .u64 .ptr .global .align 1 x,
	.param .u64 .ptr .global .align 1 y
)
.reqntid {threads}
{{
	.reg .pred %p<8>;
	.reg .b16 %h<8>;
	.reg .b32 %r<24>;
	.reg .b64 %d<16>;
	ld.param.b64 %d1, [x];
	ld.param.b64 %d2, [y];
	mov.u32 %r1, %tid.x;
	mul.wide.u32 %d3, %r1, 4;
	add.s64 %d4, %d1, %d3;
	add.s64 %d5, %d2, %d3;
"""
HEADER_LINES = HEADER.count("\n")


def run(body: str, x: torch.Tensor, y: torch.Tensor, threads=64, programs=1, shared=1024) -> Counts:
    """%d1 and %d2 point to x and y, %d4 and %d5 to the thread's four bytes of each; %r1 is the thread."""
    emulator = Emulator("sm_90", count=True)
    text = HEADER.format(threads=threads) + body + "\n\tret;\n}\n"
    emulator.run(text, {"x": x, "y": y}, (programs, 1, 1), shared)
    (launched,) = emulator.launched
    assert launched.counts is not None
    return launched.counts


def empty(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return uninitialised(torch.empty)(*shape, dtype=dtype)


def elementwise(instructions: str, *columns: np.ndarray | list) -> np.ndarray:
    """Operands of 4 bytes in %r2, %r3, ...; the result of 4 bytes is taken from %r10."""
    arrays = [np.atleast_1d(np.asarray(c)) for c in columns]
    n = len(arrays[0])
    x = torch.zeros(len(arrays), 32)
    for row, array in zip(x, arrays, strict=True):
        row[:n] = torch.from_numpy(array.view(np.float32))
    y = empty(32)
    loads = [f"ld.global.b32 %r{2 + k}, [%d4+{128 * k}];" for k in range(len(arrays))]
    run("\n".join((*loads, instructions, "st.global.b32 [%d5], %r10;")), x, y, threads=32)
    return y[:n].numpy()


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


ULP = 2.0**-23


@pytest.mark.parametrize(
    ("instructions", "operands", "expected"),
    [
        # The exact sum lies below the middle of two floats, and rounded to float64 first, on it.
        (
            "fma.rn.f32 %r10, %r2, %r3, %r4;",
            [f32(1 + ULP), f32(2**-24 * (1 - ULP)), f32(1 + ULP)],
            f32(1 + ULP),
        ),
        ("fma.rn.f32 %r10, %r2, %r3, %r4;", [f32(1 + ULP), f32(1 - ULP), f32(-1)], f32(-(2.0**-46))),
        ("add.f32 %r10, %r2, %r3;", [f32(2.0**-140, 1), f32(2.0**-140, ULP / 2)], f32(2.0**-139, 1)),
        ("add.ftz.f32 %r10, %r2, %r3;", [f32(1e-40, -1e-40, 1), f32(0, -0.0, 2)], f32(0, -0.0, 3)),
        ("sqrt.approx.ftz.f32 %r10, %r2;", [f32(1e-40, 4, -1)], f32(0, 2, np.nan)),
        ("sqrt.rn.f32 %r10, %r2;", [f32(2.0**-140, 2)], f32(2.0**-70, np.sqrt(np.float32(2)))),
        ("div.full.f32 %r10, %r2, %r3;", [f32(1, 1, 0), f32(3, 0, 0)], f32(1 / 3, np.inf, np.nan)),
        ("div.approx.f32 %r10, %r2, %r3;", [f32(1, np.inf, 6), f32(2e38, 2e38, 2)], f32(0, np.nan, 3)),
        ("ex2.approx.ftz.f32 %r10, %r2;", [f32(3, -126, -127, 200)], f32(8, 2.0**-126, 0, np.inf)),
        ("ex2.approx.f32 %r10, %r2;", [f32(-127)], f32(2.0**-127)),
        ("min.f32 %r10, %r2, %r3;", [f32(np.nan, 1), f32(2, -1)], f32(2, -1)),
        ("max.NaN.f32 %r10, %r2, %r3;", [f32(np.nan, 1), f32(2, -1)], f32(np.nan, 1)),
        ("max.f32 %r10, %r2, %r3, %r2;", [f32(5), f32(2)], f32(5)),
        ("div.s32 %r10, %r2, %r3;", [i32(7, -7, 7), i32(2, 2, -2)], i32(3, -3, -3)),
        ("rem.s32 %r10, %r2, %r3;", [i32(7, -7), i32(4, 4)], i32(3, -3)),
        ("mul.lo.s32 %r10, %r2, %r3;", [i32(1 << 20), i32(4097)], i32(1 << 20)),
        ("mul.wide.s32 %d6, %r2, %r3; mov.b64 {_, %r10}, %d6;", [i32(-1), i32(5)], i32(-1)),
        ("shl.b32 %r10, %r2, %r3;", [i32(1, 1), i32(4, 32)], i32(16, 0)),
        ("shr.s32 %r10, %r2, %r3;", [i32(-8, -8), i32(1, 40)], i32(-4, -1)),
        ("shr.u32 %r10, %r2, 28;", [i32(-1)], i32(15)),
        ("bfe.u32 %r10, %r2, 4, 4;", [i32(0xABC)], i32(0xB)),
        ("bfe.s32 %r10, %r2, 4, 4;", [i32(0xABC)], i32(0xB - 16)),
        ("popc.b32 %r10, %r2;", [i32(0xFF0F, -1)], i32(12, 32)),
        ("setp.lt.f32 %p1, %r2, %r3; selp.b32 %r10, 1, 0, %p1;", [f32(1, np.nan), f32(2, 2)], i32(1, 0)),
        ("setp.geu.f32 %p1, %r2, %r3; selp.b32 %r10, 1, 0, %p1;", [f32(1, np.nan), f32(2, 2)], i32(0, 1)),
        ("setp.neu.f32 %p1, %r2, %r3; selp.b32 %r10, 1, 0, %p1;", [f32(2, np.nan), f32(2, 2)], i32(0, 1)),
        ("cvt.rn.f32.s32 %r10, %r2;", [i32(-3, (1 << 24) + 1)], f32(-3, 1 << 24)),
        (
            "cvt.rn.bf16.f32 %h1, %r2; cvt.f32.bf16 %r10, %h1;",
            [f32(1 + 2**-8, 1 + 3 * 2**-8)],
            f32(1, 1 + 2**-6),
        ),
        ("cvt.rn.f16.f32 %h1, %r2; cvt.f32.f16 %r10, %h1;", [f32(1 + 2**-11, 1e6)], f32(1, np.inf)),
        # The first operand goes to the upper half, and each is rounded to the nearest.
        (
            "cvt.rn.bf16x2.f32 %r10, %r2, %r3;",
            [f32(1, 1 + 3 * 2**-8), f32(-2, 1 + 2**-8)],
            i32(0x3F80C000, 0x3F823F80),
        ),
        ("cvt.rn.f16x2.f32 %r10, %r2, %r3;", [f32(1, 1e6), f32(-2, 1 + 2**-11)], i32(0x3C00C000, 0x7C003C00)),
        ("mov.b32 %r10, %r2; @%p1 mov.b32 %r10, 0;", [i32(5)], i32(5)),
        ("cvt.rn.bf16.f32 %h1, %r2; sub.rn.f32.bf16 %r10, %h1, %r3;", [f32(1.5), f32(1)], f32(0.5)),
        ("cvt.rn.f16.f32 %h1, %r2; sub.rn.f32.f16 %r10, %h1, %r3;", [f32(1.5), f32(ULP)], f32(1.5 - ULP)),
        (
            "mov.b64 %d6, {%r2, %r3}; fma.rn.f32x2 %d7, %d6, %d6, %d6; mov.b64 {_, %r10}, %d7;",
            [f32(2), f32(3)],
            f32(12),
        ),
    ],
    ids=str,
)
def test_values(instructions: str, operands: list, expected: np.ndarray):
    found = elementwise(instructions, *operands)
    np.testing.assert_array_equal(found.view(expected.dtype), expected)
    zeros = (found == 0) & (found.dtype == expected.dtype)
    np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(expected[zeros]))


def test_float64_is_rounded_once():
    x, y = torch.tensor([1 + 2.0**-30, -1 - 2.0**-29], dtype=torch.float64), empty(32, dtype=torch.float64)
    run(
        "ld.global.b64 %d6, [%d1]; ld.global.b64 %d7, [%d1+8]; fma.rn.f64 %d8, %d6, %d6, %d7;"
        "setp.eq.b32 %p1, %r1, 0; @%p1 st.global.b64 [%d2], %d8;",
        x,
        y,
        threads=32,
    )
    assert y[0] == 2.0**-60


def test_random_fma_is_the_exactly_rounded_one():
    generator = np.random.default_rng(0)
    a, b = (generator.normal(size=32).astype(np.float32) for _ in range(2))
    c = -(a * b) * np.float32(1 + ULP)
    found = elementwise("fma.rn.f32 %r10, %r2, %r3, %r4;", a, b, c)
    exact = a.astype(np.longdouble) * b + c  # at most 48 digits cancel: exact in 64
    np.testing.assert_array_equal(found, exact.astype(np.float32))


def test_shuffles():
    x = torch.arange(64).float()
    for instruction, expected in (
        ("shfl.sync.bfly.b32 %r3, %r2, 4, 31, -1;", [i ^ 4 for i in range(64)]),
        ("shfl.sync.idx.b32 %r3, %r2, 7, 31, -1;", [7] * 32 + [39] * 32),
        ("mov.b32 %r9, -1; redux.sync.max.f32 %r3, %r2, %r9;", [31] * 32 + [63] * 32),
    ):
        y = empty(64)
        run(f"ld.global.b32 %r2, [%d4]; {instruction} st.global.b32 [%d5], %r3;", x, y)
        assert y.tolist() == expected


def test_vectors_and_branches():
    """Threads below 10 double their numbers in a loop of their own length; all meet again behind it."""
    x, y = torch.arange(64).float() + 1, empty(64, 4)
    run(
        """
	ld.global.b32 %r2, [%d4];
	setp.ge.s32 %p1, %r1, 10;
	@%p1 bra $join;
	mov.b32 %r3, 0;
$loop:
	add.f32 %r2, %r2, %r2;
	add.s32 %r3, %r3, 1;
	setp.lt.s32 %p2, %r3, %r1;
	@%p2 bra $loop;
$join:
	shfl.sync.bfly.b32 %r4, %r2, 0, 31, -1;
	mad.wide.u32 %d6, %r1, 16, %d2;
	st.global.v4.b32 [%d6], {%r2, %r4, %r2, %r4};
""",
        x,
        y,
    )
    expected = [(i + 1) * 2.0 ** (max(1, i) if i < 10 else 0) for i in range(64)]
    assert y.T.tolist() == [expected] * 4


def test_matrix_instructions():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 8, 8, generator=generator, dtype=torch.float64)
    y = empty(8, 8, dtype=torch.float64)
    # A is the left half of x[0], B the transpose of the left half of x[1], C is x[2].
    run(
        """
	shr.u32 %r2, %r1, 2;
	and.b32 %r3, %r1, 3;
	mad.lo.s32 %r4, %r2, 8, %r3;
	mad.wide.u32 %d6, %r4, 8, %d1;
	ld.global.b64 %d7, [%d6];
	ld.global.b64 %d8, [%d6+512];
	mul.wide.u32 %d9, %r1, 16;
	add.s64 %d10, %d1, %d9;
	ld.global.v2.b64 {%d11, %d12}, [%d10+1024];
	mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%d13, %d14}, {%d7}, {%d8}, {%d11, %d12};
	add.s64 %d15, %d2, %d9;
	st.global.v2.b64 [%d15], {%d13, %d14};
""",
        x,
        y,
        threads=32,
    )
    torch.testing.assert_close(y, x[0, :, :4] @ x[1, :, :4].T + x[2], rtol=1e-14, atol=1e-14)

    words, found = torch.arange(32).float(), empty(32)
    run(
        """
	ld.global.b32 %r2, [%d4];
	shl.b32 %r3, %r1, 2;
	mov.b32 %r4, global_smem;
	add.s32 %r5, %r4, %r3;
	st.shared.b32 [%r5], %r2;
	bar.sync 0;
	and.b32 %r6, %r1, 7;
	shl.b32 %r7, %r6, 4;
	ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r8}, [%r7];
	st.global.b32 [%d5], %r8;
""",
        words,
        found,
        threads=32,
    )
    assert found.tolist() == words.tolist()


COPY = """
	shl.b32 %r3, %r1, 2;
	mov.b32 %r4, 4;
	setp.ge.s32 %p1, %r1, 48;
	selp.b32 %r4, 0, 4, %p1;
	cp.async.ca.shared.global [%r3 + 0], [%d4 + 0], 4, %r4;
	cp.async.commit_group;
	cp.async.wait_group 0;
	bar.sync 0;
	xor.b32 %r5, %r3, 128;
	ld.shared.b32 %r6, [%r5];
	st.global.b32 [%d5], %r6;
"""


def test_asynchronous_copies():
    """Threads from 48 on copy nothing, which fills their place with zeros."""
    x, y = torch.arange(48).float() + 1, empty(64)
    run(COPY, x, y)
    assert y.tolist() == [*range(33, 49), *[0] * 16, *range(1, 33)]
    with pytest.raises(UninitialisedRead, match="shared memory"):
        run(COPY.replace("cp.async.wait_group 0;", ""), x, y)
    with pytest.raises(Race, match="shared memory"):
        run(COPY.replace("bar.sync 0;", ""), x, y)


# Thread i gives its number to thread 63 - i, through shared memory.
EXCHANGE = """
	ld.global.b32 %r2, [%d4];
	shl.b32 %r3, %r1, 2;
	st.shared.b32 [%r3], %r2;
	bar.sync 0;
	xor.b32 %r5, %r3, 252;
	ld.shared.b32 %r6, [%r5];
	st.global.b32 [%d5], %r6;
$end:
"""


def test_exchange():
    x, y = torch.arange(64).float(), empty(64)
    run(EXCHANGE, x, y)
    assert y.tolist() == list(range(64))[::-1]


def spoilt(body: str, old: str, new: str) -> str:
    assert old in body
    return body.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        (
            "bar.sync 0;",
            "",
            Race,
            rf"thread 0 of program 0 loads byte 252, which warp 1 .* line {HEADER_LINES + 4}, with no barrier",
        ),
        ("st.shared.b32 [%r3], %r2;", "", UninitialisedRead, "from shared memory, byte 252"),
        ("[%d4]", "[%d4+4]", OutOfBounds, r"4 bytes at byte 256 of x, which has 256 bytes"),
        ("[%d4]", "[%d4+-4]", OutOfBounds, "byte -4 of x"),
        ("[%d5]", "[%d5+1]", OutOfBounds, "not aligned"),
        ("ld.global.b32 %r2, [%d4]", "ld.global.b32 %r2, [%d3]", EmulationError, "in no tensor"),
        ("ld.shared.b32 %r6, [%r5]", "ld.shared.b32 %r6, [%r5+1024]", OutOfBounds, "shared memory"),
        ("[%d4]", "[%d5]", UninitialisedRead, "thread 0 of program 0 loads from y, byte 0"),
        (
            "bar.sync 0;",
            "setp.eq.s32 %p1, %r1, 3; @%p1 bra $end; bar.sync 0;",
            BarrierDivergence,
            "bar.sync",
        ),
        (
            "bar.sync 0;",
            "setp.eq.s32 %p1, %r1, 3; @%p1 bra $on; shfl.sync.bfly.b32 %r2, %r2, 1, 31, -1;\n$on:",
            BarrierDivergence,
            "lanes of a warp",
        ),
        ("[%d5], %r6", "[%d2], %r6", Race, "store different values in byte 0"),
        ("st.shared.b32 [%r3], %r2;", "st.shared.b32 [0], %r2;", Race, "store different values"),
    ],
    ids=str,
)
def test_mistakes_are_found(old, new, error, message):
    with pytest.raises(error, match=message):
        run(spoilt(EXCHANGE, old, new), torch.arange(64).float() + 1, empty(64))


def test_store_after_another_warps_load():
    again = EXCHANGE + "st.shared.b32 [%r3], %r1;"
    with pytest.raises(Race, match=r"stores byte .* loaded at PTX line"):
        run(again, torch.zeros(64), empty(64))
    run(EXCHANGE + "bar.sync 0; st.shared.b32 [%r3], %r1;", torch.zeros(64), empty(64))


def test_a_dropped_store_leaves_a_hole():
    y = empty(64)
    run(spoilt(EXCHANGE, "st.global", "setp.ne.s32 %p1, %r1, 5; @%p1 st.global"), torch.zeros(64), y)
    assert y.isnan().nonzero().tolist() == [[5]]
    with pytest.raises(UninitialisedRead, match="byte 20"):
        run(EXCHANGE, y, empty(64))


def test_gaps_of_a_strided_tensor_are_not_its_own():
    wide, y = torch.zeros(32, 2), empty(32)
    body = "ld.global.b32 %r2, [%d4]; st.global.b32 [%d5], %r2;"
    run(body, wide, y, threads=32)
    with pytest.raises(OutOfBounds, match="byte 4 of x belongs to no tensor"):
        run(body, wide[:, 0], y, threads=32)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("mov.u32 %r2, %ctaid.x; st.global.b32 [%d5], %r2;", "which warp 0 of program . stored"),
        ("ld.global.b32 %r2, [%d5]; add.s32 %r2, %r2, 1; st.global.b32 [%d5], %r2;", "loaded"),
        ("setp.eq.s32 %p1, %r1, 0; @%p1 ld.global.b32 %r2, [%d5+4]; st.global.b32 [%d5], %r1;", "program"),
    ],
)
def test_programs_that_meet_in_global_memory(body, message):
    y = torch.zeros(64)
    run(body.replace("%d5+4", "%d5"), torch.zeros(1), y, threads=32)
    with pytest.raises(Race, match=message):
        run(body, torch.zeros(1), y, threads=32, programs=2)


def test_several_may_store_the_same_value():
    y = empty(64)
    run("mov.b32 %r2, 0f3F800000; st.global.b32 [%d2], %r2;", torch.zeros(1), y, programs=3)
    assert y[0] == 1


@pytest.mark.parametrize(
    "instruction", ["frobnicate.b32 %r2, %r3;", "fma.rz.f32 %r2, %r2, %r2, %r2;", "bar.sync 1, 32;"]
)
def test_unknown_instruction_is_named_with_its_line(instruction):
    line = HEADER_LINES + 2
    with pytest.raises(UnknownInstruction, match=rf"PTX line {line}: {re.escape(instruction[:-1])}"):
        run(f"\n{instruction}", torch.zeros(1), torch.zeros(1))


def test_counts():
    x, y = torch.zeros(64 * 8), empty(64)
    contiguous = run(EXCHANGE, x, y, programs=1)
    assert contiguous.barriers_per_program == 1
    assert contiguous.instructions_per_warp() == 6 + 7 + 1
    assert contiguous.instructions_per_warp("ld.global") == 1
    assert (contiguous.sectors["load"].requested, contiguous.sectors["load"].efficiency) == (8, 1)
    assert (contiguous.wavefronts["load"].needed, contiguous.wavefronts["load"].conflicts) == (2, 0)

    apart = spoilt(
        EXCHANGE, "ld.global.b32 %r2, [%d4]", "mad.wide.u32 %d6, %r1, 32, %d1; ld.global.b32 %r2, [%d6]"
    )
    apart = spoilt(apart, "shl.b32 %r3, %r1, 2", "shl.b32 %r3, %r1, 4")
    apart = spoilt(apart, "xor.b32 %r5, %r3, 252", "mov.b32 %r5, %r3")
    counted = run(apart, x, y)
    assert (counted.sectors["load"].requested, counted.sectors["load"].used) == (64, 8)
    assert counted.sectors["store"].efficiency == 1
    assert (counted.wavefronts["store"].needed, counted.wavefronts["store"].without_conflicts) == (8, 2)

    shifted = run(spoilt(EXCHANGE, "[%d4]", "[%d4+4]"), x, y)
    assert (shifted.sectors["load"].requested, shifted.sectors["load"].used) == (10, 8)


def test_critical_path_waits_for_operands_and_barriers():
    x, y = torch.zeros(64), empty(64)
    alone = critical_path(run(EXCHANGE, x, y))
    assert alone.waits["barrier"] >= 24
    twice = critical_path(run(spoilt(EXCHANGE, "bar.sync 0;", "bar.sync 0;\nbar.sync 0;"), x, y))
    assert twice.cycles == alone.cycles + 24
    assert critical_path(run(EXCHANGE, x, y), global_latency=250).cycles > alone.cycles + 200


def train(change: Callable[[str], str]) -> dict[str, torch.Tensor]:
    S, F = (x.float() for x in random_maps(1, 8, (9, 8)))
    with emulated("sm_90", change=change):
        return results(module("triton", (1,), torch.float32), S, F)


@pytest.mark.compiled
def test_barriers_taken_out_of_kernels_are_found():
    """Every fourth of them, but for spare ones: the compiler does not always see that two accesses are apart."""
    kernels: dict[str, None] = {}
    train(lambda ptx: kernels.setdefault(ptx) or ptx)
    found, missed = 0, []
    for kernel in kernels:
        for barrier in list(re.finditer(r"\bbar\.sync[^;]*;", kernel))[::4]:
            without = kernel[: barrier.start()] + kernel[barrier.end() :]
            try:
                train(lambda ptx, kernel=kernel, without=without: without if ptx == kernel else ptx)
                missed.append(kernel.count("\n", 0, barrier.start()) + 1)
            except Race:
                found += 1
    assert found >= 20
    assert len(missed) <= 0.1 * found, f"not found: lines {missed}"


@pytest.mark.compiled
@pytest.mark.parametrize(
    "kernel", ["edge_similarity_forward", "activation_diffusion_forward", "matrix_vector"]
)
def test_a_store_taken_out_of_a_kernel_is_found(kernel):
    def without_last_store(ptx: str) -> str:
        if f".entry {kernel}" not in ptx:
            return ptx
        *_, last = re.finditer(r"(?:@%p\d+ )?st\.global[^;]*;", ptx)
        return ptx[: last.start()] + ptx[last.end() :]

    try:
        outputs = train(without_last_store)
    except UninitialisedRead:
        return
    assert any(value.isnan().any() for value in outputs.values())
