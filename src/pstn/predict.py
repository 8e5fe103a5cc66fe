"""Predictions for files; see `pstn.io.predict`."""

from pstn.io.predict import Answer, Item, ask, predict_files, read_items, require_about, write_answers

__all__ = ["Answer", "Item", "ask", "predict_files", "read_items", "require_about", "write_answers"]
