"""Recurrent networks as one op: every weight matrix meets every token (of its direction) once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from tpu_perf.analysis.op_flops.call import Call, TensorArgument
from tpu_perf.analysis.op_flops.formulas import Attention, Unknown, formula


def _matrices(tensors: Iterable[Any]) -> float:
    """Elements of the weight matrices among these parameters (biases are vectors)."""
    return float(
        sum(t.elements for t in tensors if isinstance(t, TensorArgument) and len(t.shape) == 2)
    )


@formula("lstm", "gru", "rnn_tanh", "rnn_relu", "_lstm_mps")
def layers(call: Call, attention: Attention) -> float:
    """params holds w_ih, w_hh (and w_hr of a projected LSTM) of each layer and direction. Input is
    (time, batch, features) or packed (tokens, features)."""
    tokens = math.prod(call.shape("input", "data")[:-1])
    return 2.0 * tokens * _matrices(call.given("params"))


def _fused(call: Call, weights: list[Any]) -> float:
    tokens = math.prod(call.shape("input")[:-1])
    matrices = _matrices(weights)
    if not matrices:
        raise Unknown("its weights are packed into one buffer")
    return 2.0 * tokens * matrices


@formula("_cudnn_rnn", "miopen_rnn")
def cudnn(call: Call, attention: Attention) -> float:
    return _fused(call, call.given("weight"))


@formula("_cudnn_rnn_backward", "miopen_rnn_backward")
def cudnn_backward(call: Call, attention: Attention) -> float:
    """Gradients of the inputs and of the weights: each the forward's products."""
    return 2 * _fused(call, call.given("weight"))


@formula("mkldnn_rnn_layer")
def mkldnn(call: Call, attention: Attention) -> float:
    return _fused(call, [call.given("weight0"), call.given("weight1")])


@formula("mkldnn_rnn_layer_backward")
def mkldnn_backward(call: Call, attention: Attention) -> float:
    return 2 * _fused(call, [call.given("weight1"), call.given("weight2")])


@formula("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def cell(call: Call, attention: Attention) -> float:
    rows = math.prod(call.shape("input")[:-1])
    return 2.0 * rows * _matrices([call.given("w_ih"), call.given("w_hh")])
