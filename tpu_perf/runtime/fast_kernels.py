"""Kernels generated for the commonest signatures: the generic path, unrolled per arity.

A Strict op takes about ten microseconds, of which a loop over schema arguments would be a third.
The generated code does what `binding.bind` and `dispatch.call` do for ops whose arguments are
tensors, numbers and statics, with fresh results or one tensor written in place; anything else
(lists, aliased writes, Debug mode) goes the generic way.
"""

from __future__ import annotations

import functools
import keyword
import time
from collections.abc import Callable
from typing import Any, Literal

import torch

from tpu_perf.record.events import Tier
from tpu_perf.recorder import active
from tpu_perf.recorder.packing import dispatch_event, op_event
from tpu_perf.runtime import segment as segments
from tpu_perf.runtime.binding import bind, static_key
from tpu_perf.runtime.buffers import Buffer
from tpu_perf.runtime.call_plan import CallPlan, assemble
from tpu_perf.runtime.execution import op_program
from tpu_perf.runtime.modes import STATE, EagerMode
from tpu_perf.runtime.outstanding import OUTSTANDING
from tpu_perf.runtime.signatures import IGNORED, NUMBER, STATIC, TENSOR, Signature, is_default
from tpu_perf.runtime.torch_private import create_empty_tensor, storage_of

_PLAIN = (int, bool, type(None), torch.dtype, str, torch.memory_format, torch.layout, torch.device)


def fast_kernel(signature: Signature) -> Callable[..., Any] | None:
    """A specialised kernel, or None where the generic one serves."""
    arguments = signature.arguments
    written = [i for i, a in enumerate(arguments) if a.written]
    if signature.foreach or signature.is_out or signature.lowering is None:
        return None
    if signature.lowering.random or signature.lowering.mutates:
        return None
    if any(a.kind not in (TENSOR, NUMBER, STATIC, IGNORED) for a in arguments):
        return None
    if any(a.kind == TENSOR and a.keyword_only for a in arguments):
        return None
    if signature.check is not None and any(a.kind == NUMBER for a in arguments):
        return None  # the check may look at the number's value
    if any(a.keyword_only and keyword.iskeyword(a.name) for a in arguments):
        return None
    tensors = [i for i, a in enumerate(arguments) if a.kind == TENSOR]
    if not tensors or tensors[0] != 0 or len(tensors) > 8 or written not in ([], [0]):
        return None
    shape = tuple((a.kind, a.name if a.keyword_only else None, a.has_default) for a in arguments)
    names: dict[str, Any] = {"sig": signature, "plans": {}, "number": signature.number}
    for i, a in enumerate(arguments):
        names[f"d{i}"] = a.default
    namespace = {**_GLOBALS, **names}
    exec(_code(shape, bool(written)), namespace)
    kernel: Callable[..., Any] = namespace["kernel"]
    return kernel


#: Of each argument: its kind, its name if it can only be named, whether it has a default.
_Shape = tuple[tuple[str, str | None, bool], ...]


@functools.cache
def _code(shape: _Shape, inplace: bool) -> Any:
    return compile(_source(shape, inplace), f"{__file__}:{shape}", "exec")


def _source(shape: _Shape, inplace: bool) -> str:
    everything = "".join(f"a{i}, " for i, (_, name, _) in enumerate(shape) if name is None)
    named = "".join(f"'{name}': a{i}, " for i, (_, name, _) in enumerate(shape) if name)
    given = f"given(sig, {{{named}}})" if named else "{}"
    slow = f"call(sig, ({everything}), {given})"
    lines = [f"def kernel({_parameters(shape)}):"]
    add = lines.append
    for i, (_, name, _) in enumerate(shape):
        if name is not None:
            add(f"    a{i} = {name}")
    add("    mode = STATE.mode")
    add(f"    if mode is DEBUG: return {slow}")
    add("    rec = active.recorder")
    add("    t0 = clock() if rec is not None else 0")
    tensors = [i for i, (kind, *_) in enumerate(shape) if kind == TENSOR]
    numbers = [i for i, (kind, *_) in enumerate(shape) if kind == NUMBER]
    for i in numbers:
        add(f"    if a{i} is d{i} or a{i} is None: k{i} = a{i}")
        add(f"    elif a{i} == d{i} and a{i}.__class__ is d{i}.__class__: k{i} = a{i}")
        add(f"    elif a{i}.__class__ is float or a{i}.__class__ is int: k{i} = a{i}.__class__")
        add(f"    else: return {slow}")
    key = _tensor_keys(add, tensors, slow, inplace)
    key += [f"k{i}" for i in numbers]
    for i, (kind, _, _) in enumerate(shape):
        if kind == STATIC:
            key.append(f"(a{i} if a{i}.__class__ in PLAIN else static_key(a{i}))")
    add(f"    key = ({', '.join(key)},)")
    add("    plan = plans.get(key)")
    add("    if not plan:")
    add(f"        if plan is None: plan = learn(sig, plans, key, ({everything}), {given})")
    add(f"        if not plan: return {slow}")
    _buffers_and_numbers(add, tensors[1:], numbers)
    add("    if mode is DEFER:")
    add("        out = current_segment().record(plan, buffers, numbers, (a0,))")
    add("        if rec is not None: rec.dispatch(event(t0, clock(), number, -1, rec.step))")
    add("        return out")
    _strict(add, tensors[1:], bool(numbers), inplace)
    return "\n".join(lines)


def _parameters(shape: _Shape) -> str:
    positional, named = [], []
    for i, (_, name, has_default) in enumerate(shape):
        default = f"=d{i}" if has_default else ""
        if name is None:
            positional.append(f"a{i}{default}")
        else:
            named.append(f"{name}{default}")
    return ", ".join((*positional, *(("*", *named) if named else ())))


def _tensor_keys(
    add: Callable[[str], None], tensors: list[int], slow: str, inplace: bool
) -> list[str]:
    """Code that finds the buffers `b0`... of the tensor arguments; returns their parts of the
    key."""
    add("    try: b0 = storage_of(a0)._buffer")
    add(f"    except (AttributeError, TypeError): return {slow}")
    add("    s0 = b0.spec")
    add(f"    if s0.may_be_turned: return {slow}")
    key = ["a0.shape", "a0.stride()", "a0.storage_offset()", "s0"]
    for i in tensors[1:]:
        add(f"    if a{i}.__class__ is float or a{i}.__class__ is int:")
        add(f"        k{i} = a{i}.__class__; b{i} = None")
        add(f"    elif a{i} is None: k{i} = b{i} = None")
        add("    else:")
        add(f"        try: b{i} = storage_of(a{i})._buffer")
        add(f"        except (AttributeError, TypeError): return {slow}")
        add(f"        s{i} = b{i}.spec")
        aliased = f" or b{i} is b0" if inplace else ""
        add(f"        if s{i}.may_be_turned{aliased}: return {slow}")
        add(f"        k{i} = (a{i}.shape, a{i}.stride(), a{i}.storage_offset(), s{i})")
        key.append(f"k{i}")
    return key


def _strict(
    add: Callable[[str], None], values: list[int], has_numbers: bool, inplace: bool
) -> None:
    """Code that runs the plan's program now and makes the result."""
    if inplace:
        add("    overwritten = not plan.reads or plan.reads[0]")
        # The array comes first: that of unwritten memory is found to be shared by asking for it.
        _array(add, "b0", "x0", "    if not overwritten:")
        add("    if overwritten or b0.shared: program = plan.program")
        add("    else: program = plan.donating")
        add("    if program is None: program = strict_program(plan, b0)")
        _run(add, values, has_numbers, "*(() if overwritten else (x0,)), ")
        add("    b0.array = outs[0]; b0.shared = False; b0.segment = None")
        add("    if not b0.counted: b0.fill(outs[0])")
        add("    result = a0")
    else:
        add("    program = plan.program")
        add("    if program is None: program = strict_program(plan, None)")
        _array(add, "b0", "x0")
        _run(add, values, has_numbers, "x0, ")
        add("    fresh = plan.fresh")
        add("    if plan.single:")
        add("        f = fresh[0]")
        add("        if f.contiguous:")
        add("            result = create(f.size, f.spec.dtype)")
        add("            storage_of(result)._buffer = Buffer(outs[0], f.spec)")
        add("        else: result = f.tensor(outs[0])")
        add("    else: result = many(plan, outs)")
    add("    if rec is not None:")
    add("        tier = program.tier if nth == 1 else MEMORY")
    add("        rec.op(op_event(t0, t1, t2, clock(), number, program.index, tier, rec.step))")
    add("    return result")


def _buffers_and_numbers(add: Callable[[str], None], values: list[int], numbers: list[int]) -> None:
    """Code that lists the buffers that take part and the numbers that the program is given."""
    if not values:
        add("    buffers = (b0,)")
    elif len(values) == 1:
        add(f"    buffers = (b0,) if b{values[0]} is None else (b0, b{values[0]})")
    else:
        found = ", ".join(f"b{i}" for i in (0, *values))
        add(f"    buffers = [b for b in ({found}) if b is not None]")
    asked = sorted((*values, *numbers))
    if len(asked) == 1:
        i = asked[0]
        add(f"    numbers = (a{i},) if k{i} is float or k{i} is int else NONE")
    elif asked:
        pairs = ", ".join(f"(a{i}, k{i})" for i in asked)
        add(f"    numbers = [a for a, k in ({pairs}) if k is float or k is int] "
            "if plan.number_kinds else NONE")  # fmt: skip
    else:
        add("    numbers = NONE")


def _array(add: Callable[[str], None], buffer: str, name: str, condition: str = "") -> None:
    """Code that puts a buffer's array into `name`, under an `if` where one is given."""
    indent = "    "
    if condition:
        add(condition)
        indent = "        "
    add(f"{indent}{name} = {buffer}.array")
    add(f"{indent}if {name} is None or {buffer}.segment is not None: "
        f"{name} = {buffer}.ready('unknown')")  # fmt: skip


def _run(add: Callable[[str], None], values: list[int], has_numbers: bool, first: str) -> None:
    """Code that runs the program on the first array and what the other arguments are."""
    add("    run = program.call; outstanding.anything = True")
    add("    program.executions = nth = program.executions + 1")
    add("    if rec is not None: t1 = clock()")
    if len(values) > 1:
        add("    rest = [b.array if b.array is not None and b.segment is None "
            "else b.ready('unknown') for b in buffers[1:]]")  # fmt: skip
        add(f"    outs = run({first}*rest, *numbers)")
    elif values:
        i = values[0]
        _array(add, f"b{i}", f"x{i}", f"    if b{i} is not None:")
        if has_numbers:
            add(f"        outs = run({first}x{i}, *numbers) if numbers else run({first}x{i})")
        else:
            add(f"        outs = run({first}x{i})")
        add(f"    else: outs = run({first}*numbers)")
    elif has_numbers:
        add(f"    outs = run({first}*numbers)")
    else:
        add(f"    outs = run({first})")
    add("    if rec is not None: t2 = clock()")


def _given(signature: Signature, named: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments that say more than their defaults."""
    return {
        argument.name: named[argument.name]
        for argument in signature.arguments
        if argument.name in named and not is_default(named[argument.name], argument.default)
    }


def _learn(
    signature: Signature,
    plans: dict[Any, CallPlan | Literal[False]],
    key: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> CallPlan | Literal[False] | None:
    """The plan of a call that the generated code can run, kept under its own key; False where
    it cannot run it, None before the generic path has made a plan."""
    bound = bind(signature, args, kwargs)
    plan = signature.plans.get(bound.key)
    if plan is None:
        return None
    found: CallPlan | Literal[False] = plan if _is_simple(plan, bound.slot_of) else False
    plans[key] = found
    return found


def _is_simple(plan: CallPlan, slot_of: list[int]) -> bool:
    if plan.random or slot_of != list(range(len(slot_of))):
        return False
    if plan.mutated:
        everything = tuple(range(len(plan.slots)))
        return plan.mutated == (0,) and not plan.fresh and plan.reads in (
            everything, everything[1:])  # fmt: skip
    return plan.reads == tuple(range(len(plan.slots)))


def _strict_program(plan: CallPlan, written: Buffer | None) -> Any:
    plan.program = op_program(plan, ())
    if written is None:
        return plan.program
    if plan.reads and plan.reads[0] == 0:
        plan.donating = op_program(plan, (0,))
        return plan.program if written.shared else plan.donating
    return plan.program


def _many(plan: CallPlan, outs: tuple[Any, ...]) -> Any:
    fresh = [output.tensor(array) for output, array in zip(plan.fresh, outs, strict=True)]
    return assemble(plan.returns, fresh, ())


def _call(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    from tpu_perf.runtime.dispatch import call

    _GLOBALS["call"] = call
    return call(signature, args, kwargs)


_GLOBALS: dict[str, Any] = {
    "STATE": STATE, "DEBUG": EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING,
    "DEFER": EagerMode.DEFER_AND_FUSE, "active": active, "clock": time.perf_counter_ns,
    "storage_of": storage_of, "PLAIN": _PLAIN, "static_key": static_key, "NONE": (),
    "learn": _learn, "given": _given, "call": _call, "Buffer": Buffer,
    "create": create_empty_tensor, "many": _many, "strict_program": _strict_program,
    "current_segment": segments.current_segment, "outstanding": OUTSTANDING,
    "event": dispatch_event, "op_event": op_event, "MEMORY": int(Tier.MEMORY),
}  # fmt: skip
