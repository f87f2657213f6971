"""How often a while loop runs: from what XLA noted, or from its counter, bound and step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tpu_perf.hlo.module import Computation, Instruction
from tpu_perf.hlo.text import scalar_value

#: Instructions that hand on the value of their first operand.
_FORWARDS = frozenset({"copy", "bitcast", "convert", "reshape", "copy-done", "opt-barrier"})
_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}
DEEPEST = 100


@dataclass(frozen=True, slots=True)
class Value:
    """A scalar: a loop's carried element `carried` plus `offset`, or the number `offset`."""

    offset: int
    carried: int | None = None


Bindings = Mapping[Instruction, "Value | None"]


def trip_count(loop: Instruction) -> int | None:
    """Iterations of one execution of a while instruction; None if they are not known."""
    noted = loop.backend_config.get("known_trip_count")
    if isinstance(noted, dict):
        try:
            count = int(noted["n"])
        except (KeyError, TypeError, ValueError):
            count = -1
        if count >= 0:
            return count
    if len(loop.called) != 2 or len(loop.operands) != 1:
        return None
    body, condition = loop.called
    return _counted(loop.operands[0], body, condition)


def _counted(start: Instruction, body: Computation, condition: Computation) -> int | None:
    test = _comparison(condition.root, {}, 0)
    if test is None:
        return None
    left, right, direction = test
    if left.carried is None:
        left, right, direction = right, left, _MIRRORED[direction]
    bound = _invariant(right, start, body)
    if left.carried is None or bound is None:
        return None
    after = _tuple_element(body.root, left.carried, {}, 0)
    begin = _tuple_element(start, left.carried, {}, 0)
    if after is None or begin is None or begin.carried is not None:
        return None
    if after.carried != left.carried or after.offset == 0:
        return None
    # The test sees the counter plus an offset: shift both begin and bound by it.
    return _iterations(begin.offset + left.offset, bound, after.offset, direction)


def _iterations(begin: int, bound: int, step: int, direction: str) -> int | None:
    if direction == "NE":
        distance = bound - begin
        return distance // step if distance % step == 0 and distance // step >= 0 else None
    if direction in ("GT", "GE"):
        begin, bound, step = -begin, -bound, -step
    if direction in ("LE", "GE"):
        bound += 1
    if begin >= bound:
        return 0
    return -(-(bound - begin) // step) if step > 0 else None


def _invariant(value: Value, start: Instruction, body: Computation) -> int | None:
    """A number that the loop does not change: a constant, or an element it hands on."""
    if value.carried is None:
        return value.offset
    if _tuple_element(body.root, value.carried, {}, 0) != Value(0, value.carried):
        return None
    begin = _tuple_element(start, value.carried, {}, 0)
    return None if begin is None or begin.carried is not None else begin.offset + value.offset


def _comparison(
    root: Instruction, bindings: Bindings, depth: int
) -> tuple[Value, Value, str] | None:
    """(left, right, direction) of a loop's condition; None if it is another test."""
    if depth > DEEPEST:
        return None
    if root.opcode in _FORWARDS:
        return _comparison(root.operands[0], bindings, depth + 1)
    if root.opcode == "fusion":
        inside = _bind(root, bindings, depth)
        return _comparison(root.called[0].root, inside, depth + 1)
    if root.opcode != "compare" or root.proto.comparison_direction not in _MIRRORED:
        return None
    left, right = (_value(operand, bindings, depth + 1) for operand in root.operands[:2])
    if left is None or right is None:
        return None
    return left, right, root.proto.comparison_direction


def _bind(call: Instruction, bindings: Bindings, depth: int) -> dict[Instruction, Value | None]:
    parameters = call.called[0].parameters()
    return {
        parameter: _value(operand, bindings, depth + 1)
        for parameter, operand in zip(parameters, call.operands, strict=False)
    }


def _value(one: Instruction, bindings: Bindings, depth: int) -> Value | None:
    """The integer that an instruction computes, as far as it can be followed."""
    if depth > DEEPEST or one.shape.elements != 1:
        return None
    opcode = one.opcode
    if opcode == "constant":
        number = scalar_value(one)
        return Value(number) if isinstance(number, int) else None
    if opcode == "parameter":
        # Of a fusion: what it was called with. Of a loop that carries one scalar: that.
        return bindings.get(one)
    if opcode in _FORWARDS and one.operands:
        return _value(one.operands[0], bindings, depth + 1)
    if opcode == "get-tuple-element":
        return _tuple_element(one.operands[0], int(one.proto.tuple_index), bindings, depth + 1)
    if opcode == "fusion":
        return _value(one.called[0].root, _bind(one, bindings, depth), depth + 1)
    if opcode in ("add", "subtract") and len(one.operands) == 2:
        left, right = (_value(operand, bindings, depth + 1) for operand in one.operands)
        return _added(left, right, 1 if opcode == "add" else -1)
    return None


def _added(left: Value | None, right: Value | None, sign: int) -> Value | None:
    if left is None or right is None:
        return None
    if right.carried is None:
        return Value(left.offset + sign * right.offset, left.carried)
    if sign == 1 and left.carried is None:
        return Value(left.offset + right.offset, right.carried)
    return None


def _tuple_element(one: Instruction, number: int, bindings: Bindings, depth: int) -> Value | None:
    """The integer at a place of a tuple; a loop's own parameter gives what it carries there."""
    if depth > DEEPEST or one in bindings:  # a fusion's parameter that is a tuple: not followed
        return None
    if one.opcode in _FORWARDS:
        return _tuple_element(one.operands[0], number, bindings, depth + 1)
    if one.opcode == "tuple":
        if not 0 <= number < len(one.operands):
            return None
        return _value(one.operands[number], bindings, depth + 1)
    if one.opcode == "parameter":
        return Value(0, number)
    if one.opcode == "fusion" and one.called[0].root.opcode == "tuple":
        inside = _bind(one, bindings, depth)
        return _tuple_element(one.called[0].root, number, inside, depth + 1)
    return None
