"""Write the settings that the searches choose to the files that the comparisons read."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pstn.experiments import little_data, per_input
from pstn.report.results import read_results

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the settings that the searches choose.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("results"), help="of results")
    folder = parser.parse_args().folder
    for module in (little_data, per_input):
        chosen = module.choose_settings(read_results(folder, module.SEARCH.name))
        Path(str(module.CHOSEN)).write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")
