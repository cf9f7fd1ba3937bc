"""`python -m scm_fast.cli`, and so `torchrun -m scm_fast.cli train`."""

from . import main

raise SystemExit(main())
