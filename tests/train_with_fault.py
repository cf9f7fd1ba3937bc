"""train.py in a process that something happens to: FAULT=<signal name>:<step>:<rank>, at its first start.

The signal reaches all processes of the group if the process leads one, as Ctrl-C in a terminal does.
"""

import os
import runpy
import signal
import subprocess
import time
from pathlib import Path

import scm_fast.training.trainer as trainer

name, step, rank = os.environ["FAULT"].split(":")
whole_step = trainer.Trainer._optimizer_step


def step_with_fault(self, *arguments):
    hit = self.step == int(step) and os.environ.get("RANK", "0") == rank
    if hit and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        if os.getpgrp() == os.getpid():
            # By a process from outside: DataLoader's workers treat a signal of their parent differently.
            subprocess.run(
                ["kill", "-s", name.removeprefix("SIG"), "--", f"-{os.getpgrp()}"],
                start_new_session=True,
                check=True,
            )
            time.sleep(1)  # until the others have seen to it
        else:
            os.kill(os.getpid(), signal.Signals[name])
    return whole_step(self, *arguments)


trainer.Trainer._optimizer_step = step_with_fault
runpy.run_path(str(Path(__file__).parent.parent / "train.py"), run_name="__main__")
