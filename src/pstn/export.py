"""Export to ONNX and `torch.export` programs; see `pstn.io.export`."""

from pstn.io.export import advice_on_running, export_onnx, export_program

__all__ = ["advice_on_running", "export_onnx", "export_program"]
