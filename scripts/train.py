"""``cdmpp model train`` from a source checkout; its settings are in ``conf/config.yaml``."""

import sys

from cdmpp.cli.command import main

if __name__ == "__main__":
    sys.exit(main(["model", "train", *sys.argv[1:]], sys.argv[0]))
