"""Learned-repeat cutting: find where a run of ops repeats and cut there ever after.

One layer's program is then compiled once and hit for every layer. Measured on a 12-layer model
(see README): cutting at repeats beat never cutting and fixed lengths.
"""

from __future__ import annotations

#: Ops that identify a place in the stream.
GRAM = 8
#: Shortest and longest period cut at. TorchTPU uses 10 to 128; below 24 false repeats appear
#: inside one layer.
MIN_PERIOD, MAX_PERIOD = 24, 256
_HISTORY = 4 * MAX_PERIOD


class Repeats:
    """Watches a thread's stream of op identities."""

    __slots__ = ("_grams", "_history", "_matched", "_period", "_since_cut", "learned")

    def __init__(self) -> None:
        self._history: list[int] = []
        self._grams: dict[tuple[int, ...], int] = {}
        self._period = 0
        self._matched = 0
        self._since_cut = 0
        self.learned: set[tuple[int, ...]] = set()

    def see(self, op: int) -> bool:
        """Note one op; True if the segment should be cut after it."""
        self._since_cut += 1
        history = self._history
        history.append(op)
        position = len(history)
        gram = tuple(history[-GRAM:])
        if gram in self.learned:
            self._period = self._matched = self._since_cut = 0
            return True
        period = self._period
        if period and history[position - 1 - period] == op:
            self._matched += 1
        else:
            before = self._grams.get(gram)
            distance = position - before if before is not None else 0
            self._period = distance if MIN_PERIOD <= distance <= MAX_PERIOD else 0
            self._matched = GRAM if self._period else 0
        self._grams[gram] = position
        period = self._period
        # A period is cut once: after a cut, the repeat that it was cut for is still going on.
        if period and self._matched >= period and self._since_cut >= period:
            self.learned.add(gram)
            self._period = self._matched = self._since_cut = 0
            return True
        if position > _HISTORY:
            self._forget()
        return False

    def _forget(self) -> None:
        drop = len(self._history) - 2 * MAX_PERIOD
        del self._history[:drop]
        self._grams = {g: p - drop for g, p in self._grams.items() if p > drop}
