"""python -m null_gpu.commands COMMANDS.json: commands of scm-fast on the null GPU; exit statuses as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from scm_fast.cli import main

from .values import Values

if __name__ == "__main__":
    with Values():
        found = [main(arguments) for arguments in json.loads(Path(sys.argv[1]).read_text())]
    print(json.dumps(found), flush=True)
    os._exit(0)
