"""What a process does with its memory."""

import platform
import subprocess
import sys

import pytest

TWENTY_BLOCKS = """
import resource
import numpy as np
from pstn.processes import keep_freed_memory
if {keeps}:
    keep_freed_memory()
np.ones(1 << 23)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    np.ones(1 << 23)  # 64 MiB
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators are not asked")
def test_freed_memory_is_kept_and_not_cleared_anew():
    faults = [
        int(
            subprocess.run(
                [sys.executable, "-c", TWENTY_BLOCKS.format(keeps=keeps)], capture_output=True, check=True
            ).stdout
        )
        for keeps in (False, True)
    ]
    assert faults[1] < 0.1 * faults[0], faults
