"""``cdmpp data import`` from a source checkout; its settings are in ``conf/import_data.yaml``."""

import sys

from cdmpp.cli.command import main

if __name__ == "__main__":
    sys.exit(main(["data", "import", *sys.argv[1:]], sys.argv[0]))
