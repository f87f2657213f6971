"""Module paths of compiled graphs read as those of eager ops."""

from __future__ import annotations

import pytest

from tpu_perf.runtime.call_description import _plain_path


@pytest.mark.parametrize(
    ("dynamos", "ours"),
    [
        ("L['self'].model.layers[3].mlp", "model.layers.3.mlp"),
        ("L['self']._modules['0']", "0"),
        ("L['args'][0]._modules['model']._modules['layers']._modules['0']", "model.layers.0"),
        ("L['args'][0]", "(root)"),
        ("L['fn'].head", "head"),
    ],
)
def test_dynamos_name_of_the_root_is_left_out(dynamos: str, ours: str) -> None:
    assert _plain_path(dynamos) == ours
