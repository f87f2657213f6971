"""What a program's key is made of: named components, hashed one by one, and how two keys differ."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

#: The components in the order in which they enter the key, and what users are told they are.
COMPONENTS: Mapping[str, str] = {
    "program": "program text",
    "inputs": "inputs",
    "donation": "donated inputs",
    "compiler_options": "compiler options",
    "jax": "jax version",
    "jaxlib": "jaxlib version",
    "platform": "platform",
    "platform_version": "platform version",
    "device_kind": "device kind",
    "xla_flags": "XLA_FLAGS",
    "libtpu_init_args": "LIBTPU_INIT_ARGS",
    "host_cpu": "host CPU",
    "torch": "torch version",
    "lowerings": "lowerings digest",
}
#: Those that are of one program; the rest are of the process.
OF_PROGRAM = ("program", "inputs", "donation", "compiler_options")
OF_PROCESS = tuple(name for name in COMPONENTS if name not in OF_PROGRAM)
#: Differences named in one sentence at most.
MOST_NAMED = 3
_DIGEST_DIGITS = 16
_EXCERPT = 48


def digest(name: str, text: str) -> str:
    """The SHA-256 of one component, in hexadecimal."""
    return hashlib.sha256(f"{name}\0{text}".encode()).hexdigest()


class Process:
    """The components that are the same for every program of a process, hashed once."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        """`texts` must name every component of OF_PROCESS; raises KeyError otherwise."""
        self.texts = {name: texts[name] for name in OF_PROCESS}
        self.digests = {name: digest(name, text) for name, text in self.texts.items()}
        self._tail = "\n".join(self.digests.values())

    def key(self, digests: Mapping[str, str]) -> str:
        head = "\n".join(digests[name] for name in OF_PROGRAM)
        return hashlib.sha256(f"{head}\n{self._tail}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Components:
    """One key, taken apart. `texts` may lack components whose text is not at hand; `digests`
    hold the first 16 digits of each component's SHA-256."""

    key: str
    texts: Mapping[str, str]
    digests: Mapping[str, str]

    @classmethod
    def of(cls, process: Process, of_program: Mapping[str, str]) -> Components:
        """The key of a program of this process."""
        digests = {name: digest(name, of_program[name]) for name in OF_PROGRAM}
        key = process.key(digests)
        short = {n: d[:_DIGEST_DIGITS] for n, d in {**digests, **process.digests}.items()}
        return cls(key, {**of_program, **process.texts}, short)

    @classmethod
    def of_texts(cls, texts: Mapping[str, str]) -> Components:
        """The key that these texts make. Raises KeyError where a component is missing."""
        return cls.of(Process(texts), {name: texts[name] for name in OF_PROGRAM})


def inputs_text(inputs: Iterable[tuple[Sequence[int], str]]) -> str:
    """The component `inputs`: dtype and shape of each input, one a line."""
    return "\n".join(f"{dtype}[{','.join(map(str, shape))}]" for shape, dtype in inputs)


class _HasComponents(Protocol):
    @property
    def components(self) -> Components: ...


Known = TypeVar("Known", bound=_HasComponents)


def nearest(wanted: Components, known: Iterable[Known]) -> Known | None:
    """Of the known programs the one that shares most components with the wanted one; of equals
    the one that shares most inputs, then the last. None if none is known, or only itself."""
    best, best_score = None, (-1, -1)
    for candidate in known:
        other = candidate.components
        if other.key == wanted.key:
            continue
        score = (shared(wanted, other), _inputs_shared(wanted, other))
        if score >= best_score:
            best, best_score = candidate, score
    return best


def shared(a: Components, b: Components) -> int:
    """How many components two keys have in common."""
    return sum(b.digests.get(name) == value for name, value in a.digests.items())


def _inputs_shared(a: Components, b: Components) -> int:
    ours, theirs = a.texts.get("inputs"), b.texts.get("inputs")
    if ours is None or theirs is None:
        return 0
    pairs = zip(ours.splitlines(), theirs.splitlines(), strict=False)
    return sum(x == y for x, y in pairs)


def differing(before: Components, after: Components) -> list[str]:
    """Names of the components in which two keys differ, in the order of the key."""
    return [n for n in COMPONENTS if before.digests.get(n) != after.digests.get(n)]


def explain(before: Components, after: Components) -> str:
    """What differs between two keys, in words: "input 2 shape [8,128] -> [8,256]".

    The program's text is named only where the inputs do not account for it: it holds their
    shapes. "nothing" where the keys are the same.
    """
    found: list[str] = []
    names = differing(before, after)
    if "inputs" in names and "program" in names:
        names.remove("program")
        if not _same_but_for_shapes(before.texts.get("program"), after.texts.get("program")):
            names.append("program")
    for name in names:
        old, new = before.texts.get(name), after.texts.get(name)
        if old is None or new is None:
            found.append(f"{COMPONENTS[name]} differs")
        else:
            found += _EXPLAIN.get(name, _plain)(COMPONENTS[name], old, new)
    if not found:
        return "nothing"
    more = len(found) - MOST_NAMED
    return "; ".join(found[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _same_but_for_shapes(before: str | None, after: str | None) -> bool:
    if before is None or after is None:
        return True  # nothing is known of a further difference
    return _without_shapes(before) == _without_shapes(after)


def _without_shapes(text: str) -> str:
    """The text with lists of numbers, numbers and dtypes blanked."""
    text = re.sub(r"\b(?:b?float|u?int|complex|bool)\d*\w*\b", "dtype", text)
    text = re.sub(r"[(\[]\s*(?:-?\d+\s*,?\s*)*[)\]]", "()", text)
    return re.sub(r"\d+", "#", text)


def _plain(label: str, old: str, new: str) -> list[str]:
    return [f"{label} {old or 'none'} -> {new or 'none'}"]


def _excerpt(label: str, old: str, new: str) -> list[str]:
    """The first place where two texts differ, a few words of each."""
    limit = min(len(old), len(new))
    at = next((i for i in range(limit) if old[i] != new[i]), limit)
    at = max(old.rfind(",", 0, at), old.rfind("(", 0, at), 0)
    a, b = (" ".join(text[at : at + _EXCERPT].split()) for text in (old, new))
    return [f"{label} ...{a} -> {b}..."]


def _inputs(label: str, old: str, new: str) -> list[str]:
    before, after = old.splitlines(), new.splitlines()
    if len(before) != len(after):
        return [f"number of {label} {len(before)} -> {len(after)}"]
    found = []
    for i, (a, b) in enumerate(zip(before, after, strict=True)):
        (old_dtype, _, old_shape), (new_dtype, _, new_shape) = a.partition("["), b.partition("[")
        if old_shape != new_shape:
            found.append(f"input {i} shape [{old_shape} -> [{new_shape}")
        if old_dtype != new_dtype:
            found.append(f"input {i} dtype {old_dtype} -> {new_dtype}")
    return found


def _options(label: str, old: str, new: str) -> list[str]:
    try:
        before, after = json.loads(old), json.loads(new)
    except ValueError:
        return _plain(label, old, new)
    label = label.removesuffix("s")
    return [
        f"{label} {name} {before.get(name, 'absent')} -> {after.get(name, 'absent')}"
        for name in dict.fromkeys((*before, *after))
        if before.get(name, _ABSENT) != after.get(name, _ABSENT)
    ]


_ABSENT = object()


def _words(label: str, old: str, new: str) -> list[str]:
    before, after = old.split(), new.split()
    gone = [f"-{word}" for word in before if word not in after]
    come = [f"+{word}" for word in after if word not in before]
    return [f"{label} {' '.join((*come, *gone)) or 'in another order'}"]


def _host_cpu(label: str, old: str, new: str) -> list[str]:
    before, after = (_fields(text) for text in (old, new))
    found = []
    for name in dict.fromkeys((*before, *after)):
        a, b = before.get(name, ""), after.get(name, "")
        if a == b:
            continue
        if name in ("flags", "Features"):
            found += _words(f"{label} features", a, b)
        else:
            found.append(f"{label} {a or 'unknown'} -> {b or 'unknown'}")
    return found or _plain(label, old, new)


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.split("|"))
    return {name.strip(): value.strip() for name, _, value in pairs}


_EXPLAIN = {
    "program": _excerpt, "inputs": _inputs, "compiler_options": _options,
    "xla_flags": _words, "libtpu_init_args": _words, "host_cpu": _host_cpu,
}  # fmt: skip
