"""`python train.py` is `scm-fast train`, for `torchrun train.py` in a checkout; see scm_fast/cli/train.py."""

import sys

from scm_fast.cli import execute_command

if __name__ == "__main__":
    sys.exit(execute_command("train", sys.argv[1:], "train.py"))
