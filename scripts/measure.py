"""``cdmpp measure`` from a source checkout; its settings are in ``conf/measure.yaml``."""

from cdmpp.cli.measure import main

if __name__ == "__main__":
    main()
