"""``cdmpp model``: models are listed, made and judged: one file a verb."""
