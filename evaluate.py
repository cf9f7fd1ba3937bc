"""`python evaluate.py` is `scm-fast evaluate`, for `torchrun evaluate.py` in a checkout; see
scm_fast/cli/evaluate.py."""

import sys

from scm_fast.cli import run_command

if __name__ == "__main__":
    sys.exit(run_command("evaluate", sys.argv[1:], "evaluate.py"))
