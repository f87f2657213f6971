"""Which program each batch of a step ran, though TorchTPU's log names it only on a cache miss.

A step's batches are the same, in the same order, every time. In a step with an empty cache the
first batch of each program is a miss, whose log has the program. The cache's own counters, read
after every op while the queue is at rest, say which entries were read in between, how often, and
when last: that ties the other batches to entries, and entries to programs. What is still
ambiguous stays unresolved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tpu_perf.engines.torch_tpu.wheel import Batch, CacheEntry

#: A read is stamped within its batch, give or take the clock's microsecond.
_SLACK_US = 2


@dataclass(frozen=True, slots=True)
class Window:
    """Batches `first` to `end` (exclusive) of a step, and the reads of each cache entry, by its
    number, that happened while they ran: (reads, time of the last one)."""

    first: int
    end: int
    reads: Mapping[int, tuple[int, int]]


@dataclass(slots=True)
class Entries:
    """Numbers the entries of a cache, which have no names, over looks at it: an entry that was
    not read looks as before, and one that was kept its compile time."""

    _seen: dict[CacheEntry, list[int]] = field(default_factory=dict)
    _next: int = 0

    def changes(self, now: Sequence[CacheEntry]) -> dict[int, tuple[int, int]] | None:
        """Reads since the last look by entry; None where entries cannot be told apart."""
        left = {entry: list(numbers) for entry, numbers in self._seen.items()}
        seen: dict[CacheEntry, list[int]] = {}
        changed: list[CacheEntry] = []
        for entry in now:
            if left.get(entry):
                seen.setdefault(entry, []).append(left[entry].pop())
            else:
                changed.append(entry)
        before: dict[int, list[tuple[CacheEntry, int]]] = {}
        for old, numbers in left.items():
            before.setdefault(old.compile_us, []).extend((old, number) for number in numbers)
        reads: dict[int, tuple[int, int]] = {}
        certain = True
        for entry in changed:
            candidates = before.get(entry.compile_us, [])
            certain &= len(candidates) <= 1
            if candidates:
                old, number = candidates.pop()
                reads[number] = (entry.reads - old.reads, entry.last_read_us)
            else:
                number, self._next = self._next, self._next + 1
                reads[number] = (entry.reads, entry.last_read_us)
            seen.setdefault(entry, []).append(number)
        self._seen = seen
        return reads if certain else None


@dataclass(slots=True)
class Resolver:
    """Collects what one or more looks at a step say. `programs[i]` is the key of batch i's
    program, None while unknown."""

    names: tuple[str, ...]
    programs: list[str | None] = field(default_factory=list)
    of_entry: dict[int, str] = field(default_factory=dict)
    name_of: dict[str, str] = field(default_factory=dict)  # program -> its batches' name

    def __post_init__(self) -> None:
        self.programs = self.programs or [None] * len(self.names)

    def misses(self, programs: Sequence[str | None]) -> None:
        """Keys of the batches whose log has the program, None for the others."""
        for index, program in enumerate(programs):
            if program is not None:
                self.programs[index] = program
                self.name_of[program] = self.names[index]

    def reads(self, batches: Sequence[Batch], windows: Sequence[Window]) -> None:
        """Windows of one step, whose batches' names are `names`."""
        before = -1
        while before != self.known:  # an entry learnt in one window resolves batches of another
            before = self.known
            for one in windows:
                self._window(batches, one)

    @property
    def known(self) -> int:
        return len(self.of_entry) + sum(program is not None for program in self.programs)

    def by_elimination(self) -> None:
        """A name that only one known program has leaves no other."""
        having: dict[str, set[str]] = {}
        for program, name in self.name_of.items():
            having.setdefault(name, set()).add(program)
        for index, name in enumerate(self.names):
            programs = having.get(name, set())
            if self.programs[index] is None and len(programs) == 1:
                self.programs[index] = next(iter(programs))

    def _window(self, batches: Sequence[Batch], one: Window) -> None:
        left = {entry: reads for entry, (reads, _) in one.reads.items()}
        free = set(range(one.first, one.end))
        if sum(left.values()) != len(free):
            return  # a look that came too early or too late says nothing certain

        def assign(index: int, entry: int) -> None:
            free.discard(index)
            left[entry] -= 1
            program, known = self.programs[index], self.of_entry.get(entry)
            if program is None:
                self.programs[index] = known
            elif known is None:
                self.of_entry[entry] = program

        for entry, (_, last) in one.reads.items():
            at = [
                index for index in free
                if batches[index].start_us - _SLACK_US <= last <= batches[index].end_us + _SLACK_US
            ]  # fmt: skip
            exact = [i for i in at if batches[i].start_us <= last <= batches[i].end_us] or at
            if len(exact) == 1 and self._possible(exact[0], entry):
                assign(exact[0], entry)
        moved = True
        while moved:
            moved = False
            for index in sorted(free):
                entries = [
                    entry for entry, count in left.items()
                    if count and self._possible(index, entry)
                    and batches[index].start_us <= one.reads[entry][1] + _SLACK_US
                ]  # fmt: skip
                if len(entries) == 1:
                    assign(index, entries[0])
                    moved = True

    def _possible(self, index: int, entry: int) -> bool:
        """Whether this batch can have read this entry, by what is known of either."""
        program, known = self.programs[index], self.of_entry.get(entry)
        if known is None:
            return program is None or program not in self.of_entry.values()
        return known == program if program is not None else self.name_of[known] == self.names[index]
