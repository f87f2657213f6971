"""How the ladder and a worker talk: one JSON object a line over a pipe each way."""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
from typing import Any

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    # NaN and infinity pass (Python reads back what it writes): a loss may be either.
    return json.dumps(message).encode() + b"\n"


class LineBuffer:
    """Bytes as they arrive, handed out as whole messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines if line.strip()]


class WorkerSide:
    """The worker's end. A thread waits for commands, so that a closed pipe is noticed at once:
    a worker never outlives the ladder, even in the middle of a long compile."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        for descriptor in (read_fd, write_fd):
            os.set_inheritable(descriptor, False)
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._commands: queue.SimpleQueue[Message] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="commands", daemon=True).start()

    def _listen(self) -> None:
        lines = LineBuffer()
        while data := os.read(self._read_fd, 65536):
            for message in lines.feed(data):
                self._commands.put(message)
        end_process_group()

    def command(self) -> Message:
        """The next command; waits for it."""
        return self._commands.get()

    def reply(self, kind: str, **fields: Any) -> None:
        data = encode({"kind": kind, **fields})
        while data:
            data = data[os.write(self._write_fd, data) :]


def end_process_group() -> None:
    """End this process and the compilers it started. Only a worker, which leads a process
    group of its own, may call it."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)
