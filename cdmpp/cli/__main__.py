"""``python -m cdmpp.cli``."""

import sys

from cdmpp.cli.command import main

sys.exit(main())
