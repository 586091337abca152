"""EagerOperator: one call that a runtime serves with a kernel of its own: what, on which shapes, of which type."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import NamedTuple

from cdmpp.errors import UnsupportedProgramError
from cdmpp.operators import attention

_MOST, _MOST_ELEMENTS = 1 << 40, 1 << 50
ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Types that operators can have."""
_PRODUCT_BYTES = {"tf32": 4, "float8": 1}
"""Types that only products have: float32 that matrix units read in part; what is multiplied, with a bfloat16 result."""


class OperatorKind(NamedTuple):
    """All operators of one name have these properties."""

    family: str
    """Operators that similar kernels serve: linear, bmm, conv, elementwise, softmax or norm."""
    op_class: str
    """Class of the operator, named as for tasks (``programs.identity.OP_CLASSES``)."""
    sizes: tuple[str, ...]
    """Names of the sizes, in the order in which people write them: ``linear 512x1024x4096``."""
    optional: Mapping[str, int] = {}
    """Further sizes and flags, with what they are where they are not given."""
    inputs: int = 1
    """Tensors that are read, of an elementwise operator."""
    special: int = 0
    """Calls such as exp for each element."""


_FLAT, _WIDEST = ((1 << 14, 1 << 14), (1 << 20, 64)), 4096
"""Elements in a row below which it becomes a matrix of so many columns."""
_MATRIX = ("rows", "cols")
_CONV = ("batch", "in_channels", "out_channels", "in_size", "kernel")
_POOL = ("batch", "channels", "in_size", "kernel")


def _elementwise(inputs: int = 1, special: int = 0) -> OperatorKind:
    return OperatorKind("elementwise", "elementwise", _MATRIX, inputs=inputs, special=special)


LEARNED: dict[str, OperatorKind] = {
    "linear": OperatorKind("linear", "dense", ("rows", "inner", "cols"), {"bias": 1}),
    "bmm": OperatorKind("bmm", "matmul", ("batch", "rows", "inner", "cols"), {"transposed": 0}),
    "conv2d": OperatorKind("conv", "conv2d", _CONV, {"stride": 1, "padding": 0, "groups": 1}),
    "softmax": OperatorKind("softmax", "softmax", _MATRIX, special=1),
    "layer_norm": OperatorKind("norm", "norm", _MATRIX, {"weights": 2}),
    **{name: _elementwise(inputs=2) for name in ("add", "sub", "mul", "div")},
    "pow": _elementwise(inputs=2, special=1),
    "where": _elementwise(inputs=3),
    **{f"{name}_scalar": _elementwise() for name in ("add", "mul", "div")},
    **{f"{name}_broadcast": _elementwise() for name in ("add", "mul")},
    "pow_scalar": _elementwise(special=1),
    **{name: _elementwise() for name in ("relu", "neg", "copy", "permute", "transpose")},
    **{name: _elementwise(special=1) for name in ("gelu", "tanh", "exp", "sqrt", "rsqrt", "sigmoid", "silu")},
    "batch_norm": OperatorKind("elementwise", "norm", _MATRIX),
    "embedding": OperatorKind("elementwise", "other", _MATRIX),
    "mean": OperatorKind("elementwise", "reduce", _MATRIX),
    **{
        name: OperatorKind("elementwise", "pool", _POOL, {"stride": 1, "padding": 0})
        for name in ("max_pool2d", "avg_pool2d")
    },
}
"""Name -> kind, of those that models learn.

``layer_norm``: ``weights`` are vectors of a row's length that are read, usually a factor and a shift. ``batch_norm``: a
row is a channel of an image, which has a factor and a shift. ``mean``: of each row.

``permute``: a copy of whole rows into another order, as of the heads of attention; ``transpose``: of blocks of a few
rows that are columns of what is read. ``add_broadcast``: the second factor is a block of a few rows, for all blocks.
"""
_CONV_OPTIONS = LEARNED["conv2d"].optional
IMAGE_GRADIENT, FILTER_GRADIENT = "conv2d_image_gradient", "conv2d_filter_gradient"
TRAINING = {
    **dict.fromkeys((IMAGE_GRADIENT, FILTER_GRADIENT), OperatorKind("conv", "conv2d", _CONV, _CONV_OPTIONS)),
    "batch_norm_train": OperatorKind("elementwise", "norm", _MATRIX, inputs=2),
    "batch_norm_gradient": OperatorKind("elementwise", "norm", _MATRIX, inputs=4),
}
"""Name -> kind, of those that training alone runs and that nobody measured by themselves (``training_form``).

Gradients of a convolution have its sizes. A batch norm reads its image for the sums and once more, its gradient does so
with image and gradient.
"""
ATTENTION = "attention"
"""Family of fused attention, of which nobody measured a call: its price is made of others (``network.eager``)."""
KINDS = (
    LEARNED
    | TRAINING
    | {name: OperatorKind(ATTENTION, "matmul", attention.SIZES, attention.OPTIONS) for name in attention.NAMES}
)
"""Name -> kind, of all operators that a network may have."""
_LATE = {"weights": 2}
"""Options that came later: texts that were stored before do not have them, and names do not show them."""
_FROM_ZERO = ("padding", "weights", *attention.OPTIONS)
_BLOCK_ROWS = {"permute": 16, "transpose": 64, "add_broadcast": 64, "mul_broadcast": 64}
FAMILIES = tuple(dict.fromkeys(kind.family for kind in LEARNED.values()))
_MOVES = ("copy", "permute", "transpose", "embedding", "where")
"""Operators that compute nothing."""
PRODUCTS = ("linear", "bmm", "conv")
"""Families whose operators are matrix products."""


_TYPES = {False: ELEMENT_BYTES, True: ELEMENT_BYTES | _PRODUCT_BYTES}
"""Whether it is a product -> its types and the bytes of an element."""


@cache
def _limits(name: str) -> Mapping[str, tuple[int, int]]:
    """Size or flag of the operators of a name -> the least and the most that it may be."""
    flags = ("bias", "transposed", *attention.FLAGS)
    return {
        size: (0, 1) if size in flags and size in KINDS[name].optional else (0 if size in _FROM_ZERO else 1, _MOST)
        for size in (*KINDS[name].sizes, *KINDS[name].optional)
    }


@dataclass(frozen=True)
class EagerOperator:
    """This is a call, whatever runtime serves it."""

    name: str
    """A key of ``KINDS``."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """All that its kind names; of the optional ones those that are not as usual may be left out."""
    dtype: str = "float32"
    elements: float = field(default=0, compare=False)
    """A call that ``flat`` made had so many elements before its last row was filled up; else 0."""
    reads: tuple[str, ...] = ()
    """Types of its tensors of as many elements as the result, where one has another type than it; a cast has one."""

    def __post_init__(self) -> None:
        for given, type_ in ((self.name, str), (self.sizes, Mapping), (self.dtype, str)):
            if not isinstance(given, type_):
                raise UnsupportedProgramError(
                    f"operator of {str(given)[:60]!r}: expected a name, sizes by name, a type"
                )
        if self.name not in KINDS:
            near = difflib.get_close_matches(self.name, KINDS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UnsupportedProgramError(f"unknown operator {self.name!r}{hint} Known: {', '.join(KINDS)}")
        kind = self.kind
        self._check_types()
        limits = _limits(self.name)
        if missing := [name for name in kind.sizes if name not in self.sizes]:
            raise UnsupportedProgramError(f"{self.name}: {', '.join(missing)} not given; it has {_usage(self.name)}")
        if extra := sorted(self.sizes.keys() - limits.keys()):
            raise UnsupportedProgramError(f"{self.name} has no {', '.join(extra)}; it has {_usage(self.name)}")
        for name, value in self.sizes.items():
            low, high = limits[name]
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                large = isinstance(value, int) and value > high > 1
                hint = ". In a network take a smaller batch or input" if large else ""
                raise UnsupportedProgramError(
                    f"{self.name}: {name} is {value!r}; a whole number from {low} to {high}{hint}"
                )
        if type(self.elements) not in (int, float) or not 0 <= self.elements <= _MOST_ELEMENTS:
            raise UnsupportedProgramError(f"{self.name} of {self.elements!r} elements: expected 0 to {_MOST_ELEMENTS}")
        object.__setattr__(self, "sizes", {**kind.optional, **self.sizes})
        self._check_together()

    def _check_together(self) -> None:
        """``UnsupportedProgramError`` for sizes that do not go together."""
        if self.kind.family == "conv" and (
            self["in_channels"] % self["groups"] or self["out_channels"] % self["groups"]
        ):
            raise UnsupportedProgramError(f"{self.name}: {self['groups']} groups do not divide its channels")
        if self.kind.family == ATTENTION and self["heads"] % attention.kv_heads(self.sizes):
            raise UnsupportedProgramError(f"{self.name}: {self['kv_heads']} kv_heads do not divide its heads")
        if "kernel" in self.sizes and self.out_size < 1:
            raise UnsupportedProgramError(f"{self.name}: a kernel of {self['kernel']} is larger than its padded input")

    def _check_types(self) -> None:
        kind = self.kind
        types = _TYPES[kind.family in PRODUCTS]
        if not isinstance(self.reads, tuple):
            raise UnsupportedProgramError(f"{self.name} reads {self.reads!r}: expected a tuple of types")
        for dtype in (self.dtype, *self.reads):
            if dtype not in types:
                raise UnsupportedProgramError(f"{self.name}: type {dtype!r}; one of {', '.join(types)}")
        if self.reads and ("rows" not in kind.sizes or len(self.reads) > kind.inputs):
            raise UnsupportedProgramError(f"{self.name} reads {len(self.reads)} types: at most {kind.inputs} here")

    @staticmethod
    def flat(name: str, elements: float, dtype: str = "float32", reads: tuple[str, ...] = ()) -> EagerOperator:
        """Make an elementwise call on ``elements`` in a row, rounded up, for which the shape says nothing.

        Long ones become matrices as those that were measured, the last row filled up: at most 0.4 % more.
        """
        if (whole := math.ceil(elements)) < 1:
            raise UnsupportedProgramError(f"{name} of {elements} elements: an operator has at least one")
        widest = next((cols for below, cols in _FLAT if whole < below), _WIDEST)
        cols = min(whole, widest)
        return EagerOperator(name, {"rows": -(-whole // cols), "cols": cols}, dtype, elements, reads)

    def on_more_rows(self, least_bytes: float) -> tuple[EagerOperator, int]:
        """Multiply the rows, or images, until it moves ``least_bytes``; also return the factor. Not for products."""
        times, axis = math.ceil(least_bytes / self.io_bytes), "rows" if "rows" in self.sizes else "batch"
        return EagerOperator(self.name, {**self.sizes, axis: times * self[axis]}, self.dtype, reads=self.reads), times

    def __getitem__(self, size: str) -> int:
        return self.sizes[size]

    @cached_property
    def kind(self) -> OperatorKind:
        """Return the properties of all operators of its name."""
        return KINDS[self.name]

    @cached_property
    def out_size(self) -> int:
        """Return rows and columns of what a convolution or pooling gives."""
        return (self["in_size"] + 2 * self["padding"] - self["kernel"]) // self["stride"] + 1

    @cached_property
    def matmul(self) -> tuple[int, int, int, int]:
        """Return (how many, rows, inner, cols) of the matrix products that it is; ones for what is none."""
        if self.name == "linear":
            return 1, self["rows"], self["inner"], self["cols"]
        if self.name == "bmm":
            return self["batch"], self["rows"], self["inner"], self["cols"]
        if self.kind.family == "conv":
            groups, taps = self["groups"], self["kernel"] ** 2
            inner = self["in_channels"] // groups * taps
            return groups, self["batch"] * self.out_size**2, inner, self["out_channels"] // groups
        return 1, 1, 1, 1

    @property
    def _conv_elements(self) -> tuple[int, int, int]:
        """Elements of the image, of the filters and of the result of a convolution."""
        image = self["batch"] * self["in_channels"] * self["in_size"] ** 2
        weights = self["out_channels"] * self["in_channels"] // self["groups"] * self["kernel"] ** 2
        return image, weights, self["batch"] * self["out_channels"] * self.out_size**2

    @property
    def block_rows(self) -> int:
        """Return the rows of a block of operators that have such: the largest power of two, to a limit, in them."""
        return math.gcd(self["rows"], _BLOCK_ROWS[self.name])

    @cached_property
    def flops(self) -> float:
        """Count the arithmetic of its definition; libraries may do with less (Winograd)."""
        if self.kind.family in PRODUCTS:
            return 2.0 * math.prod(self.matmul)
        if self.kind.family == ATTENTION:
            return attention.attention_flops(self.name, self.sizes)
        if "kernel" in self.sizes:
            return self.written_elements * self["kernel"] ** 2
        norms = {"batch_norm": 2, "batch_norm_train": 5, "batch_norm_gradient": 8}
        each = {"softmax": 5, "layer_norm": 8, **norms, **dict.fromkeys(_MOVES, 0)}
        return float(each.get(self.name, 1) * self["rows"] * self["cols"])

    @cached_property
    def read_elements(self) -> float:
        """Count the elements of its inputs once each; of a table only the rows that are looked up."""
        if self.name == "linear":
            rows, inner, cols = (self[name] for name in ("rows", "inner", "cols"))
            return float(rows * inner + inner * cols + self["bias"] * cols)
        if self.name == "bmm":
            return float(self["batch"] * self["inner"] * (self["rows"] + self["cols"]))
        if self.kind.family == "conv":
            image, weights, made = self._conv_elements
            return float(
                {IMAGE_GRADIENT: made + weights, FILTER_GRADIENT: made + image}.get(self.name, image + weights)
            )
        if self.kind.family == ATTENTION:
            return attention.read_elements(self.name, self.sizes, self.element_bytes)
        if "kernel" in self.sizes:
            return float(self["batch"] * self["channels"] * self["in_size"] ** 2)
        more = {
            "layer_norm": self.sizes.get("weights", 0) * self["cols"],
            "batch_norm": 2 * self["rows"],
            "embedding": self["rows"],
        }
        if self.name.endswith("_broadcast"):
            more[self.name] = self.block_rows * self["cols"]
        return float(self.kind.inputs * self["rows"] * self["cols"] + more.get(self.name, 0))

    @cached_property
    def written_elements(self) -> float:
        """Count the elements of its output."""
        if self.kind.family == "conv":
            image, weights, made = self._conv_elements
            return float({IMAGE_GRADIENT: image, FILTER_GRADIENT: weights}.get(self.name, made))
        if self.kind.family in PRODUCTS:
            many, rows, _, cols = self.matmul
            return float(many * rows * cols)
        if self.kind.family == ATTENTION:
            return attention.written_elements(self.name, self.sizes, self.element_bytes)
        if "kernel" in self.sizes:
            return float(self["batch"] * self["channels"] * self.out_size**2)
        return float(self["rows"] if self.name == "mean" else self["rows"] * self["cols"])

    @cached_property
    def element_bytes(self) -> int:
        """One element has so many bytes."""
        return ELEMENT_BYTES.get(self.dtype) or _PRODUCT_BYTES[self.dtype]

    @property
    def result_dtype(self) -> str:
        """Type of its result."""
        return {"tf32": "float32", "float8": "bfloat16"}.get(self.dtype, self.dtype)

    @property
    def result_element_bytes(self) -> int:
        """One element of its result has so many bytes."""
        return ELEMENT_BYTES[self.result_dtype]

    @cached_property
    def read_bytes(self) -> float:
        """Its inputs have so many bytes, each counted once."""
        each = self["rows"] * self["cols"] if self.reads else 0
        other = sum(ELEMENT_BYTES[dtype] - self.element_bytes for dtype in self.reads)
        return self.element_bytes * self.read_elements + each * other

    @cached_property
    def written_bytes(self) -> float:
        """Its output has so many bytes."""
        return self.result_element_bytes * self.written_elements

    @cached_property
    def io_bytes(self) -> float:
        """All inputs and outputs have so many bytes, each counted once."""
        return self.read_bytes + self.written_bytes

    def to_json(self) -> str:
        """Write the same text for the same operator."""
        late = {name for name, usual in _LATE.items() if self.sizes.get(name) == usual}
        sizes = {name: value for name, value in self.sizes.items() if name not in late}
        reads = {"reads": list(self.reads)} if self.reads else {}
        return json.dumps({"operator": self.name, "dtype": self.dtype, **reads, **sizes}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> EagerOperator:
        """Read what ``to_json`` wrote; ``UnsupportedProgramError``: no operator."""
        try:
            values = dict(json.loads(text))
            name, dtype, reads = values.pop("operator"), values.pop("dtype", "float32"), values.pop("reads", ())
            return EagerOperator(name, values, dtype, reads=tuple(reads))
        except (ValueError, TypeError, KeyError) as error:
            raise UnsupportedProgramError(f"not an operator: {text[:120]}") from error

    @staticmethod
    def parse(name: str, text: str, dtype: str = "float32", /, **options: int) -> EagerOperator:
        """Parse ``("linear", "512x1024x4096")``: its sizes in the order of its kind."""
        kind = KINDS.get(name)
        parts = text.lower().split("x")
        if kind is not None and (len(parts) != len(kind.sizes) or not all(map(is_size, parts))):
            raise UnsupportedProgramError(f"{name} {text}: expected {_usage(name)}, whole numbers with an x between")
        sizes = dict(zip(kind.sizes, map(int, parts), strict=True)) if kind is not None else {}
        return EagerOperator(name, {**sizes, **options}, dtype)

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        sizes = "x".join(str(self[name]) for name in self.kind.sizes)
        shown = {name: usual for name, usual in self.kind.optional.items() if name not in _LATE}
        unusual = {name: self[name] for name, usual in shown.items() if self[name] != usual}
        more = [f"{name}={value}" for name, value in unusual.items()] + [self.dtype] * (
            self.dtype != "float32" or bool(self.reads)
        )
        more += [f"of {' and '.join(dict.fromkeys(self.reads))}"] * bool(self.reads)
        return " ".join([self.name, sizes, *more])

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.dtype, self.reads, frozenset(self.sizes.items())))


def is_size(text: str) -> bool:
    """Return True for a whole number that an operator could have: Python makes none of thousands of digits."""
    return text.isdecimal() and len(text) <= len(str(_MOST))


def _usage(name: str) -> str:
    kind = KINDS[name]
    more = "".join(f", {option}={usual}" for option, usual in kind.optional.items())
    return f"{name} {'x'.join(kind.sizes)}{more}"
