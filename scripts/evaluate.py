"""``cdmpp evaluate`` from a source checkout; its settings are in ``conf/evaluate.yaml``."""

from cdmpp.cli.evaluate import main

if __name__ == "__main__":
    main()
