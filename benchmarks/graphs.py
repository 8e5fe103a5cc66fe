"""Work as a CUDA graph, whose replay is the device's own time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["captured"]


def captured(work: Callable[[], Any]) -> Callable[[], Any]:
    """`work` as one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay
