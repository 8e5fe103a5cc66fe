"""Models as they are shared: moved away from how they start, and what they answer."""

import torch


def moved(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01 * torch.randn_like(parameter)
    return model.eval()


def answers(model, x):
    torch.manual_seed(3)
    out = model(x)
    return out if isinstance(out, torch.Tensor) else out.sample_log_probs
