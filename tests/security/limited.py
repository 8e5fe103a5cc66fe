"""A Python process whose address space is limited: for tests that a hostile file takes little memory and time."""

import os
import subprocess
import sys
import textwrap

_PRELUDE = """\
import resource, sys
import torch, pstn, pstn.files
{imports}
torch.set_num_threads(1)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {memory}, used + {memory}))
"""


def run_limited(code, *arguments, memory=1 << 29, seconds=60, imports="", cwd=None):
    """Run Python code that may take `memory` bytes more than Python, torch, pstn and `imports` take by themselves.

    The code finds `arguments` in sys.argv[1:]. A process that outlasts `seconds` raises subprocess.TimeoutExpired, and
    one that asks for more memory ends with a MemoryError in stderr and an exit code other than 0.
    """
    text = _PRELUDE.format(memory=memory, imports=textwrap.dedent(imports)) + textwrap.dedent(code)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.run(
        [sys.executable, "-P", "-c", text, *map(str, arguments)],
        capture_output=True, text=True, timeout=seconds, cwd=cwd, env=environment, check=False,
    )  # fmt: skip


def run_limited_command(*arguments, **options):
    """Run `pstn ARGUMENTS` in such a process."""
    return run_limited("pstn.cli.main()", *arguments, imports="import pstn.cli", **options)
