"""Runs on disk: settings, data, checkpoints, evaluation and sweeps."""
