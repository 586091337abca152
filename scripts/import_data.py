"""``cdmpp import`` from a source checkout; its settings are in ``conf/import_data.yaml``."""

from cdmpp.cli.import_data import main

if __name__ == "__main__":
    main()
