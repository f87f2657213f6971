"""The fused LSTM cell against torch's own cell and its gradient."""

from __future__ import annotations

import torch

from tests.unit.against_torch import metas_of, run, same, sample


def test_lstm_cell_and_gradient() -> None:
    gates_in, gates_hidden = (sample(2, 12, seed=s).requires_grad_() for s in (0, 1))
    before = sample(2, 3).requires_grad_()
    bias_in, bias_hidden = (sample(12, seed=s).requires_grad_() for s in (2, 3))
    enter, forget, cell, leave = (gates_in + gates_hidden + bias_in + bias_hidden).chunk(4, 1)
    state = forget.sigmoid() * before + enter.sigmoid() * cell.tanh()
    hidden = leave.sigmoid() * state.tanh()
    grads = sample(2, 3, seed=4), sample(2, 3, seed=5)
    torch.autograd.backward([hidden, state], list(grads))

    workspace = torch.cat([enter.sigmoid(), forget.sigmoid(), cell.tanh(), leave.sigmoid()], 1)
    got = run("_thnn_fused_lstm_cell", metas_of([hidden, state, workspace]),
              (gates_in, gates_hidden, before, bias_in, bias_hidden), {})  # fmt: skip
    for mine, theirs in zip(got, (hidden, state, workspace), strict=True):
        same(mine, theirs)

    assert gates_in.grad is not None
    assert before.grad is not None
    assert bias_in.grad is not None
    wanted = [gates_in.grad, before.grad, bias_in.grad]
    back = run("_thnn_fused_lstm_cell_backward_impl", metas_of(wanted),
               (*grads, before, state, workspace, True), {})  # fmt: skip
    for mine, theirs in zip(back, wanted, strict=True):
        same(mine, theirs)
