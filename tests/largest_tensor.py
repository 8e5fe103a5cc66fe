"""How large the largest tensor is that some code makes."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """Within it, `values` is the number of values of the largest tensor that an operation has made."""

    values = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        own = [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        # A view has the memory of what it shows.
        self.values = max([self.values, *(t.untyped_storage().nbytes() // t.element_size() for t in own)])
        return made
