"""A select box whose choice is a query parameter by its own name, not by the text it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st
from streamlit.delta_generator import DeltaGenerator


def choose(
    where: DeltaGenerator,
    label: str,
    options: Sequence[str],
    parameter: str,
    shown: Callable[[str], str],
    *,
    first: bool = False,
) -> str | None:
    """What the URL says or the user picks; else the first option if `first`, else None.

    Streamlit's own binding puts the text that is shown into the URL.
    """
    key = f"choose-{parameter}"

    def remember() -> None:
        picked = st.session_state[key]
        if picked is None:
            st.query_params.pop(parameter, None)
        else:
            st.query_params[parameter] = picked

    named = st.query_params.get(parameter)
    index = options.index(named) if named in options else (0 if first else None)
    picked = where.selectbox(
        label, options, index=index, key=key, format_func=shown, on_change=remember,
        placeholder="choose",
    )  # fmt: skip
    return None if picked is None else str(picked)
