"""What a stranger does first, on an installation of the core alone: no test runner, no extras."""

import importlib.util

import torch

import pstn
import pstn.data

absent = [name for name in ("typer", "rich", "matplotlib", "scipy", "pytest") if importlib.util.find_spec(name) is None]
assert len(absent) == 5, f"this environment is not the core alone: only {absent} are absent"

digits = pstn.data.load_digits("test")
model = pstn.nn.mnist_pstn()
prediction = model(digits.x[:8])
pstn.elbo_loss(prediction, digits.y[:8], kl_weight=3e-4).backward()
optimiser = torch.optim.Adam(model.parameter_groups(lr=1e-3))
optimiser.step()
assert model.eval()(digits.x[:8]).entropy.shape == (8,)
print(f"pstn {pstn.__version__} from {pstn.__file__}: the core works by itself")
