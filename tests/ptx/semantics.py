"""What instructions on registers compute: (opcode, number of operands) -> Operation.

Values are numpy arrays over the threads, or one number for all of them. float32 and float64 are rounded as the
instruction says: once for fma, subnormal numbers flushed to zero for .ftz. Approximate instructions give the
correctly rounded value; what the PTX manual says of their special cases is kept.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

DTYPES = {
    "pred": np.bool_,
    "b8": np.uint8,
    "b16": np.uint16,
    "b32": np.uint32,
    "b64": np.uint64,
    **{f"u{bits}": np.dtype(f"u{bits // 8}").type for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}").type for bits in (8, 16, 32, 64)},
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
}


class Operation(NamedTuple):
    compute: Callable
    takes: tuple[str, ...]  # types of the operands
    gives: str  # type of the result


OPERATIONS: dict[tuple[str, int], Operation] = {}


def _define(opcodes: str, types: str, compute: Callable, takes: str = "t t", gives: str = "t") -> None:
    """For every type: t stands for it in `takes` and `gives`."""
    for t in types.split():
        operands = tuple(t if o == "t" else o for o in takes.split())
        for opcode in opcodes.split():
            OPERATIONS[f"{opcode}.{t}", len(operands)] = Operation(
                compute, operands, t if gives == "t" else gives
            )


# ---- floating point

_SMALLEST_NORMAL = np.float32(2.0**-126)


def flush(x: np.ndarray) -> np.ndarray:
    """Subnormal float32 to zero of the same sign."""
    return np.where(np.abs(x) < _SMALLEST_NORMAL, np.copysign(np.float32(0), x), x)


def _flushing(compute: Callable) -> Callable:
    return lambda *operands: flush(compute(*(flush(x) for x in operands)))


def _two_sum(a, b):
    """a + b rounded, and what the rounding took."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def _two_product(a, b):
    """a b rounded, and what the rounding took; float64, by splitting each factor in halves."""
    product = a * b
    a_high, b_high = ((x * 134217729.0) - ((x * 134217729.0) - x) for x in (a, b))
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _sum_to_odd(a, b):
    """a + b in float64, an inexact result rounded to the neighbour whose last bit is 1.

    Rounding that once more, to a shorter format, is as good as rounding the exact sum.
    """
    total, lost = _two_sum(a, b)
    bits = np.asarray(total).view(np.int64)
    step = np.where((lost > 0) == (total > 0), 1, -1)
    inexact = (lost != 0) & np.isfinite(lost) & (bits & 1 == 0)
    return np.where(inexact, bits + step, bits).view(np.float64)


def fma32(a, b, c):
    a, b, c = (np.asarray(x).astype(np.float64) for x in (a, b, c))  # the product is exact
    return _sum_to_odd(a * b, c).astype(np.float32)


def fma64(a, b, c):
    """By Boldo and Melquiond: error-free product and sums, of which the last but one is rounded to odd."""
    product, product_low = _two_product(a, b)
    low, lowest = _two_sum(c, product_low)
    high, middle = _two_sum(product, low)
    exact = high + _sum_to_odd(middle, lowest)
    return np.where(np.isfinite(exact), exact, a * b + c)


def bf16_to_f32(x):
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(x):
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint16(0x7FFF), rounded.astype(np.uint16))


def _pairs(compute: Callable) -> Callable:
    """A float32 operation on both halves of 64 bits."""

    def both(*operands):
        halves = (np.atleast_1d(x)[:, None].view(np.float32) for x in operands)
        return np.ascontiguousarray(compute(*halves)).view(np.uint64)[:, 0]

    return both


def _approximate_division(a, b):
    quotient = np.where((np.abs(b) > 2.0**126) & np.isfinite(b), np.where(np.isinf(a), np.nan, 0.0), a / b)
    return quotient.astype(np.float32)


def _through_float64(compute: Callable) -> Callable:
    """Correctly rounded to float32, but for ties of the function's exact value, which are rarer than it matters."""
    return lambda x: compute(np.asarray(x).astype(np.float64)).astype(np.float32)


_FLOAT32: dict[str, tuple[Callable, int]] = {
    "add add.rn": (operator.add, 2),
    "sub sub.rn": (operator.sub, 2),
    "mul mul.rn": (operator.mul, 2),
    "min": (np.fmin, 2),
    "max": (np.fmax, 2),
    "min.NaN": (np.minimum, 2),
    "max.NaN": (np.maximum, 2),
    "neg": (operator.neg, 1),
    "abs": (np.abs, 1),
    "fma.rn": (fma32, 3),
    "div.full div.rn": (operator.truediv, 2),
    "div.approx": (_approximate_division, 2),
    "sqrt.approx sqrt.rn": (np.sqrt, 1),
    "rsqrt.approx": (_through_float64(lambda x: 1 / np.sqrt(x)), 1),
    "rcp.approx rcp.rn": (lambda x: np.float32(1) / x, 1),
    "ex2.approx": (_through_float64(np.exp2), 1),
    "lg2.approx": (_through_float64(np.log2), 1),
}
for _names, (_compute, _arity) in _FLOAT32.items():
    _takes = " ".join("t" * _arity)
    _define(_names, "f32", _compute, _takes)
    _define(" ".join(f"{name}.ftz" for name in _names.split()), "f32", _flushing(_compute), _takes)
for _name in ("min", "max"):  # of three, from sm_100 on
    _three = functools.partial(lambda two, a, b, c: two(two(a, b), c), _FLOAT32[_name][0])
    _define(_name, "f32", _three, "t t t")
_define("add", "f32x2", _pairs(operator.add), "b64 b64", "b64")
_define("sub", "f32x2", _pairs(operator.sub), "b64 b64", "b64")
_define("mul", "f32x2", _pairs(operator.mul), "b64 b64", "b64")
_define("fma.rn", "f32x2", _pairs(fma32), "b64 b64 b64", "b64")
_define("fma.rn.f32", "bf16", lambda a, b, c: fma32(bf16_to_f32(a), bf16_to_f32(b), c), "b16 b16 f32", "f32")
_define("fma.rn.f32", "f16", fma32, "t t f32", "f32")

_define("add add.rn", "f64", operator.add)
_define("sub sub.rn", "f64", operator.sub)
_define("mul mul.rn", "f64", operator.mul)
_define("div.rn", "f64", operator.truediv)
_define("min", "f64", np.fmin)
_define("max", "f64", np.fmax)
_define("neg", "f64", operator.neg, "t")
_define("abs", "f64", np.abs, "t")
_define("sqrt.rn", "f64", np.sqrt, "t")
_define("rcp.rn", "f64", lambda x: 1 / x, "t")
_define("fma.rn", "f64", fma64, "t t t")

# ---- integers

_INTEGERS = "s16 u16 s32 u32 s64 u64"


def _quotient(a, b):
    """Towards zero, as C does; a division by zero, undefined in PTX, gives some number."""
    b = np.where(b == 0, 1, b).astype(b.dtype)
    quotient = a // b
    return quotient + ((quotient < 0) & (quotient * b != a)).astype(quotient.dtype)


def _shift(direction: Callable) -> Callable:
    """By the operand's width or more: all bits gone, or the sign everywhere."""

    def compute(x, amount):
        bits = 8 * x.dtype.itemsize
        near = direction(x, np.minimum(amount, np.uint32(bits - 1)).astype(x.dtype))
        far = direction(direction(x, x.dtype.type(bits - 1)), x.dtype.type(1))
        return np.where(amount < bits, near, far)

    return compute


def _field(x, position, length):
    """`length` bits from `position`, the highest of them being the sign of a signed one; in 64 bits, then cut."""
    position, length = (
        np.minimum(v & np.uint32(255), np.uint32(32)).astype(np.int64) for v in (position, length)
    )
    length = np.minimum(length, 32 - position)
    top = 64 - length
    shifted = x.astype(np.int64) >> position
    if x.dtype == np.uint32:
        return (shifted & ((np.int64(1) << length) - 1)).astype(np.uint32)
    return np.where(length == 0, 0, (shifted << np.minimum(top, 63)) >> np.minimum(top, 63)).astype(np.int32)


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
for _narrow, _wide in (("s16", "s32"), ("u16", "u32"), ("s32", "s64"), ("u32", "u64")):
    _to = DTYPES[_wide]
    _define("mul.wide", _narrow, lambda a, b, to=_to: a.astype(to) * b.astype(to), "t t", _wide)
    _define(
        "mad.wide", _narrow, lambda a, b, c, to=_to: a.astype(to) * b.astype(to) + c, f"t t {_wide}", _wide
    )
for _name, _bitwise in (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)):
    _define(_name, "pred b16 b32 b64", _bitwise)
_define("not", "pred b16 b32 b64", operator.invert, "t")
_define("shl", "b16 b32 b64", _shift(operator.lshift), "t u32")
_define("shr", f"{_INTEGERS} b16 b32 b64", _shift(operator.rshift), "t u32")
_define("bfe", "s32 u32", _field, "t u32 u32")
_define("popc", "b32 b64", _population, "t", "u32")

# ---- comparison, choice, conversion

_ORDERED = {
    "eq": operator.eq,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_OPPOSITE = {"eq": "ne", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
for _name, _compare in _ORDERED.items():
    _define(f"setp.{_name}", f"{_INTEGERS} b16 b32 b64 f32 f64", _compare, "t t", "pred")
    # Unordered, true where one is NaN: what the opposite comparison denies.
    _denied = lambda a, b, compare=_compare: ~compare(a, b)  # noqa: E731
    _define(f"setp.{_OPPOSITE[_name]}u", "f32 f64", _denied, "t t", "pred")
_define("setp.equ", "f32 f64", lambda a, b: ~((a < b) | (a > b)), "t t", "pred")
_define("setp.ne", f"{_INTEGERS} b16 b32 b64", operator.ne, "t t", "pred")
_define("setp.ne", "f32 f64", lambda a, b: (a < b) | (a > b), "t t", "pred")
_define("setp.nan", "f32 f64", lambda a, b: (a != a) | (b != b), "t t", "pred")
_define(
    "selp", f"{_INTEGERS} b16 b32 b64 f32 f64", lambda a, b, chosen: np.where(chosen, a, b), "t t pred", "t"
)

_define("mov", f"{_INTEGERS} pred b16 b32 b64 f32 f64", lambda x: x, "t")


def _conversion(to: str) -> Callable:
    return lambda x: x.astype(DTYPES[to])


for _to_type in _INTEGERS.split():
    _define(f"cvt.{_to_type}", f"{_INTEGERS} u8 s8", _conversion(_to_type), "t", _to_type)
_define("cvt.rn.f32", f"{_INTEGERS} f64", _conversion("f32"), "t", "f32")
_define("cvt.rn.f64", _INTEGERS, _conversion("f64"), "t", "f64")
_define("cvt.f64", "f32 f16", _conversion("f64"), "t", "f64")
_define("cvt.f32", "f16", _conversion("f32"), "t", "f32")
_define("cvt.f32", "bf16", bf16_to_f32, "b16", "f32")
_define("cvt.rn.f16", "f32", _conversion("f16"), "t", "f16")
_define("cvt.rn.bf16", "f32", f32_to_bf16, "t", "b16")
