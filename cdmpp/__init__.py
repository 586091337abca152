"""cdmpp: predict how long a tensor program runs on a device before anyone runs it there."""

__version__ = "0.1.0"
