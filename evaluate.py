"""`python evaluate.py` is `scm-fast evaluate`, for `torchrun evaluate.py` in a checkout; see
scm_fast/cli/evaluate.py."""

import sys

from scm_fast.cli import execute_command

if __name__ == "__main__":
    sys.exit(execute_command("evaluate", sys.argv[1:], "evaluate.py"))
