"""``cdmpp train`` from a source checkout; its settings are in ``conf/config.yaml``."""

from cdmpp.cli.train import main

if __name__ == "__main__":
    main()
