"""Meaning of instructions on registers: (opcode, number of operands) -> Operation.

Values are numpy arrays over the threads, or one number for all of them. Results are rounded as the instruction
says: once for fma, subnormal numbers flushed to zero for .ftz. Approximate instructions give the correctly rounded
value; what the PTX manual says of their special cases is kept.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

DTYPES = {
    "pred": np.bool_,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    **{f"{kind}{bits}": np.dtype(f"u{bits // 8}").type for kind in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}").type for bits in (8, 16, 32, 64)},
}


class Operation(NamedTuple):
    compute: Callable
    takes: tuple[str, ...]  # types of the operands
    gives: str  # type of the result


OPERATIONS: dict[tuple[str, int], Operation] = {}


def _define(opcodes: str, types: str, compute: Callable, takes: str = "t t", gives: str = "t") -> None:
    """Register it for every type, which t stands for in `takes` and `gives`; float32 has an .ftz form as well."""
    for t in types.split():
        operands, result = tuple(takes.replace("t", t).split()), gives.replace("t", t)
        for opcode in opcodes.split():
            OPERATIONS[f"{opcode}.{t}", len(operands)] = Operation(compute, operands, result)
            if t == result == "f32":
                flushed = Operation(_flushing(compute), operands, result)
                OPERATIONS[f"{opcode}.ftz.f32", len(operands)] = flushed


def flush(x: np.ndarray) -> np.ndarray:
    """Subnormal float32 to zero of the same sign."""
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)


def _flushing(compute: Callable) -> Callable:
    return lambda *operands: flush(compute(*(flush(x) for x in operands)))


# ---- fma: rounded once


def _two_sum(a, b):
    """a + b rounded, and what the rounding took."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def _two_product(a, b):
    """a b rounded, and what the rounding took; float64, each factor split in halves."""
    product = a * b
    a_high, b_high = ((x * 134217729.0) - ((x * 134217729.0) - x) for x in (a, b))
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _sum_to_odd(a, b):
    """a + b in float64, an inexact result rounded to the neighbour whose last bit is 1.

    Rounding that once more, to fewer digits, is as good as rounding the exact sum.
    """
    total, lost = _two_sum(a, b)
    bits = np.asarray(total).view(np.int64)
    inexact = (lost != 0) & np.isfinite(lost) & (bits & 1 == 0)
    return np.where(inexact, bits + np.where((lost > 0) == (total > 0), 1, -1), bits).view(np.float64)


def fma32(a, b, c):
    a, b, c = (np.asarray(x).astype(np.float64) for x in (a, b, c))  # their product is exact
    return _sum_to_odd(a * b, c).astype(np.float32)


def fma64(a, b, c):
    """Compute as Boldo and Melquiond: exact product and sums, of which the last but one is rounded to odd."""
    product, product_low = _two_product(a, b)
    low, lowest = _two_sum(c, product_low)
    high, middle = _two_sum(product, low)
    result = high + _sum_to_odd(middle, lowest)
    return np.where(np.isfinite(result), result, a * b + c)


# ---- floating point


def _bf16_to_f32(x):
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _f32_to_bf16(x):
    """Round to the nearest, ties to even."""
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint16(0x7FFF), rounded.astype(np.uint16))


def _on_pairs(compute: Callable) -> Callable:
    """A float32 operation on both halves of 64 bits."""

    def both(*operands):
        halves = (np.atleast_1d(x)[:, None].view(np.float32) for x in operands)
        return np.ascontiguousarray(compute(*halves)).view(np.uint64)[:, 0]

    return both


def _approximate_quotient(a, b):
    """Divide; the reciprocal of a large divisor is flushed to zero."""
    flushed = np.where(np.isinf(a), np.float32(np.nan), np.float32(0))
    return np.where((np.abs(b) > 2.0**126) & np.isfinite(b), flushed, a / b)


def _through_float64(compute: Callable) -> Callable:
    return lambda x: compute(np.asarray(x).astype(np.float64)).astype(np.float32)


_define("add add.rn", "f32 f64", operator.add)
_define("sub sub.rn", "f32 f64", operator.sub)
_define("mul mul.rn", "f32 f64", operator.mul)
_define("fma.rn", "f32", fma32, "t t t")
_define("fma.rn", "f64", fma64, "t t t")
_define("min", "f32 f64", np.fmin)
_define("max", "f32 f64", np.fmax)
_define("min", "f32", lambda a, b, c: np.fmin(np.fmin(a, b), c), "t t t")  # from sm_100 on
_define("max", "f32", lambda a, b, c: np.fmax(np.fmax(a, b), c), "t t t")
_define("min.NaN", "f32", np.minimum)
_define("max.NaN", "f32", np.maximum)
_define("neg", "f32 f64", operator.neg, "t")
_define("abs", "f32 f64", np.abs, "t")
_define("div.full div.rn", "f32", operator.truediv)
_define("div.approx", "f32", _approximate_quotient)
_define("div.rn", "f64", operator.truediv)
_define("sqrt.approx sqrt.rn", "f32", np.sqrt, "t")
_define("sqrt.rn", "f64", np.sqrt, "t")
_define("rsqrt.approx", "f32", _through_float64(lambda x: 1 / np.sqrt(x)), "t")
_define("rcp.approx rcp.rn", "f32", lambda x: np.float32(1) / x, "t")
_define("ex2.approx", "f32", _through_float64(np.exp2), "t")
for _name, _compute, _takes in (
    ("add", operator.add, "b64 b64"),
    ("sub", operator.sub, "b64 b64"),
    ("mul", operator.mul, "b64 b64"),
    ("fma.rn", fma32, "b64 b64 b64"),
):
    _define(_name, "f32x2", _on_pairs(_compute), _takes, "b64")
# Of mixed precision, from sm_100 on.
_define("fma.rn.f32", "f16", fma32, "t t f32", "f32")
_define(
    "fma.rn.f32", "bf16", lambda a, b, c: fma32(_bf16_to_f32(a), _bf16_to_f32(b), c), "b16 b16 f32", "f32"
)
_define("add.f32 add.rn.f32", "f16", operator.add, "t f32", "f32")
_define("sub.f32 sub.rn.f32", "f16", operator.sub, "t f32", "f32")
_define("add.f32 add.rn.f32", "bf16", lambda a, b: _bf16_to_f32(a) + b, "b16 f32", "f32")
_define("sub.f32 sub.rn.f32", "bf16", lambda a, b: _bf16_to_f32(a) - b, "b16 f32", "f32")

# ---- integers

_INTEGERS = "s16 u16 s32 u32 s64 u64"
_BITS = "b16 b32 b64"


def _quotient(a, b):
    """Towards zero; a division by zero, undefined in PTX, gives some number."""
    b = np.where(b == 0, 1, b).astype(b.dtype)
    quotient = a // b
    return quotient + ((quotient < 0) & (quotient * b != a)).astype(quotient.dtype)


def _shift(direction: Callable) -> Callable:
    """Shift; by the operand's width or more all bits are gone, or the sign is everywhere."""

    def compute(x, amount):
        bits = 8 * x.dtype.itemsize
        near = direction(x, np.minimum(amount, np.uint32(bits - 1)).astype(x.dtype))
        far = direction(direction(x, x.dtype.type(bits - 1)), x.dtype.type(1))
        return np.where(amount < bits, near, far)

    return compute


def _field(x, position, length):
    """`length` bits from `position`; of a signed number the highest of them is the sign."""
    position, length = (
        np.minimum(v & np.uint32(255), np.uint32(32)).astype(np.int64) for v in (position, length)
    )
    length = np.minimum(length, 32 - position)
    value = x.astype(np.int64) >> position & (np.int64(1) << length) - 1
    if x.dtype == np.int32:
        value -= np.where(value >> np.maximum(length - 1, 0) & 1 == 1, np.int64(1) << length, 0)
    return value.astype(x.dtype)


def _population(x):
    return np.unpackbits(np.atleast_1d(x)[:, None].view(np.uint8), axis=1).sum(1, dtype=np.uint32)


_define("add", _INTEGERS, operator.add)
_define("sub", _INTEGERS, operator.sub)
_define("mul.lo", _INTEGERS, operator.mul)
_define("mad.lo", _INTEGERS, lambda a, b, c: a * b + c, "t t t")
_define("div", _INTEGERS, _quotient)
_define("rem", _INTEGERS, lambda a, b: a - _quotient(a, b) * b)
_define("min", _INTEGERS, np.minimum)
_define("max", _INTEGERS, np.maximum)
_define("neg", "s16 s32 s64", operator.neg, "t")
_define("abs", "s16 s32 s64", np.abs, "t")
for _narrow, _wide in (("s32", "s64"), ("u32", "u64")):
    _to = DTYPES[_wide]
    _define("mul.wide", _narrow, lambda a, b, to=_to: a.astype(to) * b.astype(to), "t t", _wide)
    _define(
        "mad.wide", _narrow, lambda a, b, c, to=_to: a.astype(to) * b.astype(to) + c, f"t t {_wide}", _wide
    )
_define("and", f"pred {_BITS}", operator.and_)
_define("or", f"pred {_BITS}", operator.or_)
_define("xor", f"pred {_BITS}", operator.xor)
_define("not", f"pred {_BITS}", operator.invert, "t")
_define("shl", _BITS, _shift(operator.lshift), "t u32")
_define("shr", f"{_INTEGERS} {_BITS}", _shift(operator.rshift), "t u32")
_define("bfe", "s32 u32", _field, "t u32 u32")
_define("popc", "b32 b64", _population, "t", "u32")

# ---- comparison, choice, conversion

_ALL = f"{_INTEGERS} {_BITS} f32 f64"

for _name, _compare, _opposite in (
    ("lt", operator.lt, "ge"),
    ("le", operator.le, "gt"),
    ("gt", operator.gt, "le"),
    ("ge", operator.ge, "lt"),
    ("eq", operator.eq, "ne"),
):
    _define(f"setp.{_name}", _ALL, _compare, gives="pred")
    # The opposite one, true where an operand is NaN as well; of integers, ne alone is not among the others.
    _denied = lambda a, b, compare=_compare: ~compare(a, b)  # noqa: E731
    _define(f"setp.{_opposite}u", "f32 f64", _denied, gives="pred")
_define("setp.ne", f"{_INTEGERS} {_BITS}", operator.ne, gives="pred")
_define("setp.ne", "f32 f64", lambda a, b: (a < b) | (a > b), gives="pred")
_define("setp.equ", "f32 f64", lambda a, b: ~((a < b) | (a > b)), gives="pred")
_define("setp.nan", "f32 f64", lambda a, b: np.isnan(a) | np.isnan(b), gives="pred")
_define("selp", _ALL, lambda a, b, chosen: np.where(chosen, a, b), "t t pred")
_define("mov", f"pred {_ALL}", lambda x: x, "t")


def _conversion(to: str) -> Callable:
    return lambda x: x.astype(DTYPES[to])


for _to_integer in _INTEGERS.split():
    _define(f"cvt.{_to_integer}", f"{_INTEGERS} u8 s8", _conversion(_to_integer), "t", _to_integer)
_define("cvt.rn.f32", f"{_INTEGERS} f64", _conversion("f32"), "t", "f32")
_define("cvt.rn.f64", _INTEGERS, _conversion("f64"), "t", "f64")
_define("cvt.f64", "f16 f32", _conversion("f64"), "t", "f64")
_define("cvt.f32", "f16", _conversion("f32"), "t", "f32")
_define("cvt.f32", "bf16", _bf16_to_f32, "b16", "f32")
_define("cvt.rn.f16", "f32", _conversion("f16"), "t", "f16")
_define("cvt.rn.bf16", "f32", _f32_to_bf16, "t", "b16")


def _pair(convert: Callable) -> Callable:
    """Two numbers to halves of 32 bits, the first to the upper one."""

    def both(high, low):
        upper, lower = (np.atleast_1d(convert(x)).view(np.uint16).astype(np.uint32) for x in (high, low))
        return upper << np.uint32(16) | lower

    return both


_define("cvt.rn.f16x2", "f32", _pair(_conversion("f16")), "t t", "b32")
_define("cvt.rn.bf16x2", "f32", _pair(_f32_to_bf16), "t t", "b32")
