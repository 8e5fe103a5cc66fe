"""Write the settings that the search on little data chooses to the file that the comparison reads."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pstn.experiments.little_data import CHOSEN, SEARCH, choose_settings
from pstn.report.results import read_results

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the settings that the search on little data chooses.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("results"), help="of results")
    chosen = choose_settings(read_results(parser.parse_args().folder, SEARCH.name))
    Path(str(CHOSEN)).write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")
