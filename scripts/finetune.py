"""``cdmpp finetune`` from a source checkout; its settings are in ``conf/finetune.yaml``."""

from cdmpp.cli.finetune import main

if __name__ == "__main__":
    main()
