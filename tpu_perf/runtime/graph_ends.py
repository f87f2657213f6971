"""Where an FX graph begins and ends: its placeholders and its output node."""

from __future__ import annotations

import torch


def input_nodes(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """The placeholders of a graph, in the order of its arguments."""
    return list(module.graph.find_nodes(op="placeholder"))


def output_node(module: torch.fx.GraphModule) -> torch.fx.Node:
    """The node whose first argument is what the graph returns."""
    return module.graph.output_node()
