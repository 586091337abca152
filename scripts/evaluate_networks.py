"""``cdmpp evaluate-networks`` from a source checkout; its settings are in ``conf/evaluate_networks.yaml``."""

from cdmpp.cli.evaluate_networks import main

if __name__ == "__main__":
    main()
