"""Models as they are shared: moved away from how they start, and what they answer."""

import json

import torch


def moved(model, step=0.01):
    """The model in evaluation mode, with all parameters moved at random: theta then depends on the input."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += step * torch.randn_like(parameter)
    return model.eval()


def edit_config(folder, change):
    """Change config.json of a saved model."""
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def answers(model, x):
    torch.manual_seed(3)
    out = model(x)
    return out if isinstance(out, torch.Tensor) else out.sample_log_probs
