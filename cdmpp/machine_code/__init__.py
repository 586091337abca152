"""Numbers of the code that a compiler made of a program, read without running it on the device."""

from cdmpp.machine_code.cpu.code_features import CODE_FEATURES, CODE_NAMES, CODE_VERSION, CODE_WIDTH

__all__ = ["CODE_FEATURES", "CODE_NAMES", "CODE_VERSION", "CODE_WIDTH"]
