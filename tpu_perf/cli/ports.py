"""Ports for the servers that commands start."""

from __future__ import annotations

import socket

from tpu_perf.errors import EnvironmentProblem


def usable_port(port: int, host: str = "") -> int:
    """`port` if nothing listens on it at this address, a free one for 0.

    Raises EnvironmentProblem if it is taken, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            where = f"port {port}" + (f" of {host}" if host else "")
            raise EnvironmentProblem(
                f"{where} cannot be used: {error.strerror}", hint="choose another with --port"
            ) from None
        chosen: int = probe.getsockname()[1]
        return chosen
