"""`python -m quoth`: the command line."""

import sys

try:
    from quoth.cli import main

    code = main()
except KeyboardInterrupt:
    code = 130
sys.exit(code)
