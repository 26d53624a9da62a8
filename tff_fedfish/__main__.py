"""`python -m tff_fedfish` is `fedfish`."""

import sys

from tff_fedfish.cli.main import main

if __name__ == '__main__':
  sys.exit(main())
