"""Starts Streamlit with the dashboard's pages, settings and colours, in this process."""

from __future__ import annotations

import importlib.util
import ipaddress
import sys
import threading
from importlib import import_module
from pathlib import Path

import typer

import tpu_perf
from tpu_perf.cli.ports import usable_port
from tpu_perf.errors import EnvironmentProblem, StoredRunError

#: Every setting is given, so that a user's ~/.streamlit/config.toml changes none of them.
SETTINGS: dict[str, str | tuple[str, ...]] = {
    "server.headless": "true",  # no question for an e-mail address, no browser of its own accord
    "server.fileWatcherType": "none",
    "server.runOnSave": "false",
    "server.enableCORS": "true",
    "server.enableXsrfProtection": "true",
    "server.enableStaticServing": "false",
    "server.maxUploadSize": "1",
    "server.maxMessageSize": "20",  # megabytes: more is a mistake of ours
    "browser.gatherUsageStats": "false",
    "client.toolbarMode": "viewer",
    "client.showErrorDetails": "none",
    "client.showErrorLinks": "false",
    "runner.magicEnabled": "false",
    "theme.baseFontSize": "15",
    "theme.paddingTop": "1.5rem",
    "theme.light.primaryColor": "#005A8F",
    "theme.dark.primaryColor": "#2A7FB8",
    "theme.headingFontSizes": '["2rem", "1.6rem", "1.3rem"]',
}


def serve(directory: Path, host: str, port: int) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Raises StoredRunError if `directory` is none, EnvironmentProblem if Streamlit is not installed
    or the address cannot be used.
    """
    if not directory.is_dir():
        raise StoredRunError(
            f"{directory} is not a directory",
            hint="name the one that holds your ladders: tpu-perf dashboard DIR",
        )
    if importlib.util.find_spec("streamlit") is None:
        raise EnvironmentProblem("Streamlit is not installed", hint="pip install streamlit")
    app = app_file()
    port = usable_port(port, host)
    local = is_local(host)
    arguments = [str(directory.resolve())]
    if not local:
        typer.echo(
            f"warning: anyone who can reach {host} port {port} sees everything under {directory}; "
            "there is no password. The page that starts ladders is left out.",
            err=True,
        )
        arguments.append("--no-run")
    settings = {**SETTINGS, "server.address": host, "server.port": str(port)}
    if local:  # another site's page that renames itself to 127.0.0.1 is refused
        settings["server.allowedHosts"] = ("localhost", "127.0.0.1", "::1")
    _without_calls_home()
    threading.Thread(target=_load_ahead, daemon=True).start()
    from streamlit.web import cli

    shown = f"[{host}]" if ":" in host else host
    typer.echo(f"dashboard of {directory} at http://{shown}:{port}/ (Ctrl-C ends it)")
    flags = [
        f"--{name}={value}"
        for name, values in settings.items()
        for value in ((values,) if isinstance(values, str) else values)
    ]
    cli.main(["run", str(app), *flags, "--", *arguments], standalone_mode=False)


def app_file() -> Path:
    """The script that Streamlit runs: beside this package, as a wheel or a checkout has it."""
    beside = Path(tpu_perf.__file__).resolve().parent.parent
    for name in ("tpu_perf_dashboards", "dashboards"):
        app = beside / name / "app.py"
        if app.is_file():
            return app
    raise EnvironmentProblem(
        "the dashboard's pages are not installed", hint="install tpu_perf again"
    )


def is_local(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name: who can reach it is not known


def _without_calls_home() -> None:
    """Streamlit asks Amazon for this machine's address when a foreign page knocks; not here."""
    net_util = import_module("streamlit.net_util")
    net_util.get_external_ip = lambda: None  # type: ignore[attr-defined]


def _load_ahead() -> None:
    """What the first page needs is imported while the user opens a browser."""
    for name in ("pandas", "pyarrow.parquet", "plotly.graph_objects", "scipy.stats"):
        if name not in sys.modules:
            import_module(name)
