"""`python -m quoth`: the command line."""

import sys

from quoth.cli import main

sys.exit(main())
