"""What a training starts from, so that weights and checkpoints of another one are not taken for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pstn.experiments.declare import Task
from pstn.training import Member, Recipe
from pstn.training.runs.checkpoint import member_summary

__all__ = ["digest", "identity"]


def identity(recipe: Recipe, member: Member, task: Task, untrained: nn.Module) -> str:
    """One line of JSON that is the same for the same training.

    It holds how and on which data the network is trained, and the weights that it starts from, whether those are
    random, of a file such as a backbone's, or of another training.

    Args:
        recipe: as it is run.
        member: what sets the model apart.
        task: the data, with what is odd about them.
        untrained: the network before its first step.

    Example:
        >>> task = Task(torch.zeros(1, 2), torch.zeros(1), None, "none")
        >>> one, other = (identity(Recipe(), Member(lr=lr), task, nn.Linear(2, 2)) for lr in (1e-3, 1e-4))
        >>> one == other
        False
    """
    return json.dumps(
        {
            "recipe": repr(recipe), "member": member_summary(member), "data": [task.name, *task.notes],
            # Labels tell other files, and other examples of them, at next to no cost.
            "labels": digest({"y": task.y}), "network": repr(untrained), "start": digest(untrained.state_dict()),
        }
    )  # fmt: skip


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A number for what these hold, as SHA-256 makes it.

    Example:
        >>> one, other = nn.Linear(2, 2), nn.Linear(2, 2)
        >>> digest(one.state_dict()) == digest(one.state_dict()), digest(one.state_dict()) == digest(other.state_dict())
        (True, False)
    """
    found = hashlib.sha256()
    for name, tensor in tensors.items():
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
