"""`python -m analysis.imported`: the command of the rule that reads a run."""

import sys

from analysis.imported.run import main

sys.exit(main())
