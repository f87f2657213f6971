"""`tpu-perf dashboard`: what it refuses, warns of, and how Streamlit is told to behave."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stored_ladders import two_rungs
from tpu_perf.cli.dashboard_server import SETTINGS, app_file, is_local, serve
from tpu_perf.cli.ports import usable_port
from tpu_perf.errors import EnvironmentProblem, StoredRunError

#: Loads every page in a process of its own, as Streamlit does, and lists what came with it.
IMPORTS = """
import sys
import dashboards.navigation
loaded = {name.split(".")[0] for name in sys.modules}
print(sorted(loaded & {"torch", "jax", "jaxlib", "libtpu", "transformers"}))
ours = {".".join(name.split(".")[:2]) for name in sys.modules if name.startswith("tpu_perf")}
print(sorted(ours & {f"tpu_perf.{part}" for part in
                     ("ladder", "rungs", "workloads", "engines", "runtime", "recorder")}))
"""
#: Asks whether a foreign page may connect, with every name that is looked up printed.
FOREIGN = """
import socket
from tpu_perf.cli.dashboard_server import _without_calls_home
def refused(*arguments, **more):
    print("looked up", arguments)
    raise OSError
socket.getaddrinfo = refused
_without_calls_home()
from streamlit.web.server.server_util import is_url_from_allowed_origins
print(is_url_from_allowed_origins("http://evil.example"))
"""


def _python(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_pages_load_no_measuring_package() -> None:
    assert _python(IMPORTS).splitlines() == ["[]", "[]"]


def test_a_foreign_page_is_refused_without_asking_anyone() -> None:
    assert _python(FOREIGN).splitlines() == ["False"]


def test_settings_keep_to_themselves() -> None:
    assert SETTINGS["browser.gatherUsageStats"] == "false"
    assert SETTINGS["server.enableCORS"] == SETTINGS["server.enableXsrfProtection"] == "true"
    assert SETTINGS["client.showErrorLinks"] == "false"
    assert app_file().name == "app.py"


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("127.8.8.8", True),
     ("0.0.0.0", False), ("::", False), ("192.168.1.2", False), ("myhost", False)],
)  # fmt: skip
def test_which_addresses_only_this_machine_reaches(host: str, local: bool) -> None:
    assert is_local(host) is local


def test_a_directory_that_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoredRunError, match="not a directory"):
        serve(tmp_path / "nowhere", "127.0.0.1", 0)


def test_a_taken_port_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(EnvironmentProblem, match="cannot be used"):
            usable_port(taken.getsockname()[1], "127.0.0.1")
    assert usable_port(0, "127.0.0.1") > 0


def test_another_host_warns_and_starts_no_ladders(tmp_path: Path) -> None:
    two_rungs(tmp_path / "ladder")
    command = [sys.executable, "-m", "tpu_perf", "dashboard", str(tmp_path)]
    server = subprocess.Popen(
        [*command, "--port", "0", "--host", "0.0.0.0"], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        heard = [server.stdout.readline(), server.stdout.readline()]
    finally:
        server.terminate()
        server.wait(30)
    assert "there is no password" in heard[0]
    assert "left out" in heard[0]
    assert "http://0.0.0.0:" in heard[1]
