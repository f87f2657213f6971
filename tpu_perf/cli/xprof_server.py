"""Starts XProf's own server as a child process, waits until it answers, and ends it on Ctrl-C."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO

import typer

from tpu_perf.cli.ports import usable_port
from tpu_perf.errors import EnvironmentProblem

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0


def free_port(port: int) -> int:
    """`port` if nothing listens on it, a free one for 0. Raises EnvironmentProblem if it is taken,
    or XProf is not installed."""
    if importlib.util.find_spec("xprof") is None:
        raise EnvironmentProblem(
            "XProf is not installed", hint="pip install tensorboard-plugin-profile"
        )
    return usable_port(port)


def serve(log_directory: Path, port: int) -> None:
    """Run the server until Ctrl-C or SIGTERM; the child is ended whatever happens.

    Raises EnvironmentProblem, with the server's last words, if it does not start or dies.
    """
    grpc_port = free_port(0)  # XProf opens a second port; its default may be taken
    ports = [f"--port={port}", f"--grpc_port={grpc_port}"]
    module = [sys.executable, "-m", "xprof.server", f"--logdir={log_directory}"]
    command = [*module, *ports, "--hide_capture_profile_button"]
    with tempfile.TemporaryFile() as log:
        # A session of its own: Ctrl-C reaches us alone, and we end the server in order.
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends it likewise
        try:
            _wait_until_up(server, port, log)
            typer.echo(f"XProf at http://localhost:{port}/ (Ctrl-C ends it)")
            code = server.wait()
            raise EnvironmentProblem(f"XProf's server ended with code {code}: {_last_words(log)}")
        except KeyboardInterrupt:
            typer.echo("XProf ended")
        finally:
            _end(server)
            signal.signal(signal.SIGTERM, before)


def _wait_until_up(server: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this machine
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise EnvironmentProblem(f"XProf's server did not start: {_last_words(log)}")
        try:
            with opener.open(f"http://localhost:{port}/", timeout=5):
                return
        except urllib.error.HTTPError:
            return  # it answers, which is all that is asked here
        except OSError:
            time.sleep(0.2)
    raise EnvironmentProblem(f"XProf's server did not answer within {START_TIMEOUT_S:.0f} s")


def _last_words(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _end(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
