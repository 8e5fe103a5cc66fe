"""Work that does not depend on a traced program's inputs, done once instead of at every step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

__all__ = ["fold_constants"]


def fold_constants(program: fx.GraphModule) -> None:
    """Replace what is computed from constants alone (coordinate grids, for one) by its value, in place.

    Operations that write into their arguments, draw random numbers or return anything but tensors are left alone.
    """
    written = _written(program.graph)
    values: dict[fx.Node, Any] = {}
    for node in program.graph.nodes:
        if node.op == "get_attr" and node not in written:
            values[node] = getattr(program, node.target)
        elif node.op == "call_function" and node not in written and _is_pure(node):
            inputs = node.all_input_nodes
            if all(i in values for i in inputs):
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
                result = node.target(*args, **kwargs)
                if isinstance(result, Tensor):
                    values[node] = result
    for node, value in values.items():
        if node.op != "call_function" or all(user in values for user in node.users):
            continue
        name = f"_folded_{node.name}"
        program.register_buffer(name, value.detach().clone(), persistent=False)
        with program.graph.inserting_before(node):
            node.replace_all_uses_with(program.graph.get_attr(name))
    program.graph.eliminate_dead_code()
    program.recompile()


def _is_pure(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags


def _written(graph: fx.Graph) -> set[fx.Node]:
    """Nodes whose memory some operation writes into, with the views that share it."""
    written: set[fx.Node] = set()
    for node in reversed(list(graph.nodes)):
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            continue
        for argument, value in zip(target._schema.arguments, node.args, strict=False):
            alias = argument.alias_info
            if alias is not None and isinstance(value, fx.Node) and (alias.is_write or node in written):
                written.add(value)
    return written
