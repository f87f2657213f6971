"""One line of text for an instruction: as XLA prints it, without metadata, within a length."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from tpu_perf.hlo.module import Instruction
from tpu_perf.hlo.shape import Shape

LONGEST = 300
#: Opcodes that print `dimensions={...}` even when there are none.
_WITH_DIMENSIONS = frozenset({"broadcast", "transpose", "reduce", "concatenate", "reverse", "map"})
_INTEGER_FIELDS = {
    "pred": "preds",
    "s32": "s32s",
    "s64": "s64s",
    "u32": "u32s",
    "u64": "u64s",
}
#: Literals that are kept as little-endian bytes.
_PACKED_FIELDS = {"u8": ("u8s", "<B"), "s8": ("s8s", "<b"), "u16": ("u16s", "<H")}
_PACKED_FIELDS["s16"] = ("s16s", "<h")


def instruction_text(instruction: Instruction, longest: int = LONGEST) -> str:
    """`%fusion.3 = f32[8,128]{1,0} fusion(%p.1), kind=kLoop, calls=%c`, cut at `longest`."""
    inside = _inside(instruction)
    opcode, shape = instruction.opcode, instruction.shape
    text = ", ".join(
        [f"%{instruction.name} = {shape} {opcode}({inside})", *_attributes(instruction)]
    )
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _inside(instruction: Instruction) -> str:
    if instruction.opcode == "parameter":
        return str(instruction.proto.parameter_number)
    if instruction.opcode == "constant":
        return _constant_text(instruction)
    return _listed(f"%{operand.name}" for operand in instruction.operands)


def _constant_text(instruction: Instruction) -> str:
    value = None if instruction.shape.dimensions else scalar_value(instruction)
    if value is None:
        return "{...}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    single = instruction.shape.type_name == "f32"
    form, short, exact = ("<f", 6, 9) if single else ("<d", 15, 17)
    # As XLA does: few digits where they read back as the same number, else enough for any.
    text = f"{value:.{short}g}"
    same = struct.pack(form, float(text)) == struct.pack(form, value)
    return text if same else f"{value:.{exact}g}"


def scalar_value(instruction: Instruction) -> float | int | bool | None:
    """The value of a scalar constant; None for arrays and for types that are not decoded."""
    shape, literal = instruction.shape, instruction.proto.literal
    if instruction.opcode != "constant" or shape.is_tuple or shape.elements != 1:
        return None
    return _first(literal, shape)


def _first(literal: Any, shape: Shape) -> float | int | bool | None:
    name = shape.type_name
    if name in _INTEGER_FIELDS:
        values = getattr(literal, _INTEGER_FIELDS[name])
        value = values[0] if values else None
        return value if value is None or name == "pred" else int(value)
    if name in _PACKED_FIELDS:
        field, form = _PACKED_FIELDS[name]
        raw = getattr(literal, field)
        return int(struct.unpack(form, raw)[0]) if len(raw) == struct.calcsize(form) else None
    if name in ("f32", "f64"):
        numbers = literal.f32s if name == "f32" else literal.f64s
        return float(numbers[0]) if numbers else None
    return None


def _listed(names: Iterable[str]) -> str:
    """XLA marks every fifth operand of a long list with its number."""
    return ", ".join(
        f"/*index={number}*/{name}" if number and number % 5 == 0 else name
        for number, name in enumerate(names)
    )


def _set(values: Iterable[int]) -> str:
    return "{" + ",".join(map(str, values)) + "}"


def _attributes(instruction: Instruction) -> list[str]:
    proto, opcode, called = instruction.proto, instruction.opcode, instruction.called
    found: list[str] = []
    if proto.HasField("dot_dimension_numbers"):
        found += _dot(proto.dot_dimension_numbers)
    if proto.HasField("window") and proto.window.dimensions:
        found.append(f"window={{{window_text(proto.window)}}}")
    if proto.HasField("convolution_dimension_numbers"):
        found.append(f"dim_labels={dimension_labels(instruction)}")
        for name in ("feature_group_count", "batch_group_count"):
            if getattr(proto, name) > 1:
                found.append(f"{name}={getattr(proto, name)}")
    if opcode == "iota" and proto.dimensions:
        found.append(f"iota_dimension={proto.dimensions[0]}")
    elif opcode in _WITH_DIMENSIONS or (proto.dimensions and opcode != "iota"):
        found.append(f"dimensions={_set(proto.dimensions)}")
    if opcode == "fft":
        kind = ("FFT", "IFFT", "RFFT", "IRFFT")[proto.fft_type % 4]
        found += [f"fft_type={kind}", f"fft_length={_set(proto.fft_length)}"]
    if opcode == "slice":
        found.append(f"slice={_slices(proto.slice_dimensions)}")
    if opcode == "dynamic-slice":
        found.append(f"dynamic_slice_sizes={_set(proto.dynamic_slice_sizes)}")
    if opcode == "pad":
        found.append("padding=" + "x".join(map(_padding, proto.padding_config.dimensions)))
    if opcode == "get-tuple-element":
        found.append(f"index={proto.tuple_index}")
    if proto.comparison_direction:
        found.append(f"direction={proto.comparison_direction}")
    if opcode == "sort" and proto.is_stable:
        found.append("is_stable=true")
    if opcode == "custom-call":
        found.append(f'custom_call_target="{proto.custom_call_target}"')
    if opcode == "gather":
        found += _gather(proto)
    if opcode == "scatter":
        found += _scatter(proto.scatter_dimension_numbers)
    if instruction.fusion_kind:
        found.append(f"kind={instruction.fusion_kind}")
    if proto.channel_id > 0:
        found.append(f"channel_id={proto.channel_id}")
    return found + _called(opcode, [f"%{computation.name}" for computation in called])


def _called(opcode: str, names: list[str]) -> list[str]:
    if not names:
        return []
    if opcode == "while" and len(names) == 2:
        return [f"condition={names[1]}", f"body={names[0]}"]
    if opcode == "conditional":
        return ["branch_computations={" + ", ".join(names) + "}"]
    if opcode == "fusion" or opcode.startswith("async-"):
        return [f"calls={names[0]}"]
    if opcode == "select-and-scatter" and len(names) == 2:
        return [f"select={names[0]}", f"scatter={names[1]}"]
    if opcode == "custom-call":
        return ["called_computations={" + ", ".join(names) + "}"]
    return [f"to_apply={names[0]}"]


def _dot(numbers: Any) -> list[str]:
    found = []
    for side in ("lhs", "rhs"):
        for kind in ("batch", "contracting"):
            values = getattr(numbers, f"{side}_{kind}_dimensions")
            if values or kind == "contracting":
                found.append(f"{side}_{kind}_dims={_set(values)}")
    return found


def _gather(proto: Any) -> list[str]:
    numbers = proto.gather_dimension_numbers
    found = [
        f"offset_dims={_set(numbers.offset_dims)}",
        f"collapsed_slice_dims={_set(numbers.collapsed_slice_dims)}",
        f"start_index_map={_set(numbers.start_index_map)}",
    ]
    if numbers.operand_batching_dims:
        found.append(f"operand_batching_dims={_set(numbers.operand_batching_dims)}")
        batching = _set(numbers.start_indices_batching_dims)
        found.append(f"start_indices_batching_dims={batching}")
    found.append(f"index_vector_dim={numbers.index_vector_dim}")
    found.append(f"slice_sizes={_set(proto.gather_slice_sizes)}")
    return found


def _scatter(numbers: Any) -> list[str]:
    found = [
        f"update_window_dims={_set(numbers.update_window_dims)}",
        f"inserted_window_dims={_set(numbers.inserted_window_dims)}",
        f"scatter_dims_to_operand_dims={_set(numbers.scatter_dims_to_operand_dims)}",
    ]
    if numbers.input_batching_dims:
        found.append(f"input_batching_dims={_set(numbers.input_batching_dims)}")
        batching = _set(numbers.scatter_indices_batching_dims)
        found.append(f"scatter_indices_batching_dims={batching}")
    return [*found, f"index_vector_dim={numbers.index_vector_dim}"]


def _slices(dimensions: Any) -> str:
    """XLA prints all strides as soon as one is not 1."""
    strided = any(one.stride != 1 for one in dimensions)
    ranges = (
        f"[{one.start}:{one.limit}{f':{one.stride}' if strided else ''}]" for one in dimensions
    )
    return "{" + ", ".join(ranges) + "}"


def _padding(one: Any) -> str:
    interior = f"_{one.interior_padding}" if one.interior_padding else ""
    return f"{one.edge_padding_low}_{one.edge_padding_high}{interior}"


def window_text(window: Any) -> str:
    """`size=3x3 stride=2x2 pad=0_1x0_1`: what differs from the default, as XLA prints it."""
    dimensions = list(window.dimensions)

    def line(name: str, values: list[str], default: str) -> list[str]:
        return [f"{name}={'x'.join(values)}"] if any(one != default for one in values) else []

    paddings = [f"{one.padding_low}_{one.padding_high}" for one in dimensions]
    return " ".join(
        [
            f"size={'x'.join(str(one.size) for one in dimensions)}",
            *line("stride", [str(one.stride) for one in dimensions], "1"),
            *line("pad", paddings, "0_0"),
            *line("lhs_dilate", [str(one.base_dilation) for one in dimensions], "1"),
            *line("rhs_dilate", [str(one.window_dilation) for one in dimensions], "1"),
            *line("rhs_reversal", [str(int(one.window_reversal)) for one in dimensions], "0"),
        ]
    )


def dimension_labels(instruction: Instruction) -> str:
    """`b01f_01io->b01f`: which dimension of each side is batch, feature or spatial."""
    numbers = instruction.proto.convolution_dimension_numbers
    ranks = [len(one.shape.dimensions) for one in (*instruction.operands[:2], instruction)]
    if len(ranks) < 3:
        return "?"

    def labels(rank: int, first: tuple[str, int], second: tuple[str, int], spatial: Any) -> str:
        names = ["?"] * rank
        for name, place in (first, second, *((str(n), at) for n, at in enumerate(spatial))):
            if 0 <= place < rank:
                names[place] = name
        return "".join(names)

    lhs = labels(
        ranks[0],
        ("b", numbers.input_batch_dimension),
        ("f", numbers.input_feature_dimension),
        numbers.input_spatial_dimensions,
    )
    rhs = labels(
        ranks[1],
        ("i", numbers.kernel_input_feature_dimension),
        ("o", numbers.kernel_output_feature_dimension),
        numbers.kernel_spatial_dimensions,
    )
    out = labels(
        ranks[2],
        ("b", numbers.output_batch_dimension),
        ("f", numbers.output_feature_dimension),
        numbers.output_spatial_dimensions,
    )
    return f"{lhs}_{rhs}->{out}"
