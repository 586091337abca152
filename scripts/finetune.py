"""``cdmpp model finetune`` from a source checkout; its settings are in ``conf/finetune.yaml``."""

import sys

from cdmpp.cli.command import main

if __name__ == "__main__":
    sys.exit(main(["model", "finetune", *sys.argv[1:]], sys.argv[0]))
