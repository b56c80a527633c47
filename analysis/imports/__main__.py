"""`python -m analysis.imports`: the command of the rule that reads a run."""

import sys

from analysis.imports.import_run import main

sys.exit(main())
