"""Work that does not depend on a traced program's inputs, done once instead of at every step."""

from __future__ import annotations

import operator
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
    program.graph.eliminate_dead_code(_acts)
    program.recompile()


def _acts(node: fx.Node) -> bool:
    """Whether a node does more than return a value, as far as can be known."""
    known = isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem
    return node.is_impure() or (node.op == "call_function" and not known)


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
        if target is operator.getitem:
            if node in written:
                written.update(node.all_input_nodes)
        elif isinstance(target, torch._ops.OpOverload):
            given = {**dict(zip((a.name for a in target._schema.arguments), node.args, strict=False)), **node.kwargs}
            for argument in target._schema.arguments:
                alias = argument.alias_info
                if alias is not None and (alias.is_write or node in written):
                    fx.node.map_arg(given.get(argument.name), written.add)
        elif _acts(node):
            written.update(node.all_input_nodes)  # no schema says what it writes: a kernel's launch, for one
    return written
