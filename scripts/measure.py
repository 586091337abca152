"""``cdmpp data measure`` from a source checkout; its settings are in ``conf/measure.yaml``."""

import sys

from cdmpp.cli.command import main

if __name__ == "__main__":
    sys.exit(main(["data", "measure", *sys.argv[1:]], sys.argv[0]))
