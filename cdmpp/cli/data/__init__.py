"""``cdmpp data``: what is measured, here or elsewhere: one file a verb."""
