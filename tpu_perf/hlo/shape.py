"""Shapes of HLO values: element type, dimensions, layout, and the bytes they take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

#: xla_data.proto PrimitiveType -> (name in HLO text, bits of one element). Types with no bits are
#: not arrays. Booleans take a byte.
PRIMITIVE_TYPES: dict[int, tuple[str, int]] = {
    1: ("pred", 8),
    30: ("s1", 1),
    26: ("s2", 2),
    21: ("s4", 4),
    2: ("s8", 8),
    3: ("s16", 16),
    4: ("s32", 32),
    5: ("s64", 64),
    31: ("u1", 1),
    27: ("u2", 2),
    22: ("u4", 4),
    6: ("u8", 8),
    7: ("u16", 16),
    8: ("u32", 32),
    9: ("u64", 64),
    10: ("f16", 16),
    11: ("f32", 32),
    16: ("bf16", 16),
    12: ("f64", 64),
    19: ("f8e5m2", 8),
    28: ("f8e4m3", 8),
    20: ("f8e4m3fn", 8),
    23: ("f8e4m3b11fnuz", 8),
    29: ("f8e3m4", 8),
    24: ("f8e5m2fnuz", 8),
    25: ("f8e4m3fnuz", 8),
    32: ("f4e2m1fn", 4),
    33: ("f8e8m0fnu", 8),
    15: ("c64", 64),
    18: ("c128", 128),
    13: ("tuple", 0),
    14: ("opaque", 0),
    17: ("token", 0),
    34: ("buffer", 0),
}
TUPLE, OPAQUE, TOKEN, BUFFER = 13, 14, 17, 34
DEEPEST = 50  # tuples in tuples; real modules nest three deep


class UnreadableShape(ValueError):
    """A shape that no XLA writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """An array, or a tuple of shapes. A dynamic dimension counts with its upper bound."""

    type_name: str  # "f32"; "tuple", "token", "opaque"
    element_bits: int
    dimensions: tuple[int, ...] = ()
    dynamic: tuple[bool, ...] = ()
    parts: tuple[Shape, ...] = ()  # of a tuple
    minor_to_major: tuple[int, ...] | None = None  # None without a layout
    tiles: tuple[tuple[int, ...], ...] = ()
    packed_bits: int = 0  # the layout's own element size, 0 where it is the type's
    memory_space: int = 0  # S(n) in HLO text: 0 is main memory; on TPUs 1 is VMEM
    tail_padding: int = 1

    @property
    def is_tuple(self) -> bool:
        return self.type_name == "tuple"

    @property
    def elements(self) -> int:
        """Elements of an array, or of all arrays of a tuple."""
        return sum(leaf.elements for leaf in self.parts) if self.parts else self._own_elements

    @property
    def _own_elements(self) -> int:
        return math.prod(self.dimensions) if self.element_bits else 0

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays without padding of tiles and without tables of tuple pointers."""
        if self.parts:
            return sum(part.nbytes for part in self.parts)
        return -(-self._own_elements * (self.packed_bits or self.element_bits) // 8)

    def leaves(self) -> Iterator[Shape]:
        """The arrays of a tuple, depth first; an array itself."""
        if not self.is_tuple:
            yield self
        for part in self.parts:
            yield from part.leaves()

    def __str__(self) -> str:
        """As XLA prints it: `f32[8,128]{1,0:T(8,128)}`."""
        if self.is_tuple:
            return f"({', '.join(_numbered(self.parts))})"
        if self.type_name == "buffer":
            return f"b({', '.join(map(str, self.parts))})"
        dynamic = self.dynamic or (False,) * len(self.dimensions)
        inside = ",".join(
            f"<={size}" if bounded else str(size)
            for size, bounded in zip(self.dimensions, dynamic, strict=True)
        )
        return f"{self.type_name}[{inside}]{self._layout_text()}"

    def _layout_text(self) -> str:
        if self.minor_to_major is None or not self.element_bits:
            return ""
        extra = ""
        if self.tiles:
            extra += "T" + "".join(_tile_text(tile) for tile in self.tiles)
        if self.tail_padding != 1:
            extra += f"L({self.tail_padding})"
        if self.packed_bits:
            extra += f"E({self.packed_bits})"
        if self.memory_space:
            extra += f"S({self.memory_space})"
        order = ",".join(map(str, self.minor_to_major))
        if not self.dimensions and not extra:
            return ""
        return f"{{{order}:{extra}}}" if extra else f"{{{order}}}"


def _numbered(parts: tuple[Shape, ...]) -> Iterator[str]:
    """XLA marks every fifth element of a long tuple with its number."""
    for number, part in enumerate(parts):
        yield f"/*index={number}*/{part}" if number and number % 5 == 0 else str(part)


def _tile_text(tile: tuple[int, ...]) -> str:
    # The smallest int64 stands for "combine with the next dimension", printed as a star.
    return "(" + ",".join("*" if size < 0 else str(size) for size in tile) + ")"


def read_shape(proto: Any, depth: int = 0) -> Shape:
    """A Shape of a ShapeProto. Raises UnreadableShape if it is none."""
    kind = PRIMITIVE_TYPES.get(proto.element_type)
    if kind is None:
        raise UnreadableShape(f"its element type has number {proto.element_type}")
    name, bits = kind
    if proto.element_type in (TUPLE, BUFFER):
        if depth >= DEEPEST:
            raise UnreadableShape(f"tuples in tuples, more than {DEEPEST} deep")
        parts = tuple(read_shape(part, depth + 1) for part in proto.tuple_shapes)
        return Shape(type_name=name, element_bits=0, parts=parts)
    dimensions = tuple(proto.dimensions)
    dynamic = tuple(proto.is_dynamic_dimension) if any(proto.is_dynamic_dimension) else ()
    if any(size < 0 for size in dimensions):
        raise UnreadableShape(f"a dimension of {min(dimensions)}")
    if len(dynamic) not in (0, len(dimensions)):
        raise UnreadableShape("marks of dynamic dimensions that do not match its rank")
    layout = proto.layout if proto.HasField("layout") else None
    order = None if layout is None else tuple(layout.minor_to_major)
    if order is not None and sorted(order) != list(range(len(dimensions))):
        raise UnreadableShape(f"a layout that orders dimensions as {order}")
    if layout is None:
        return Shape(type_name=name, element_bits=bits, dimensions=dimensions, dynamic=dynamic)
    return Shape(
        type_name=name,
        element_bits=bits,
        dimensions=dimensions,
        dynamic=dynamic,
        minor_to_major=order,
        tiles=tuple(tuple(tile.dimensions) for tile in layout.tiles),
        packed_bits=max(0, layout.element_size_in_bits),
        memory_space=layout.memory_space,
        tail_padding=layout.tail_padding_alignment_in_elements or 1,
    )
