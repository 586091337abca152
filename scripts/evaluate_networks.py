"""``cdmpp model evaluate-networks`` from a source checkout; its settings are in ``conf/evaluate_networks.yaml``."""

import sys

from cdmpp.cli.command import main

if __name__ == "__main__":
    sys.exit(main(["model", "evaluate-networks", *sys.argv[1:]], sys.argv[0]))
