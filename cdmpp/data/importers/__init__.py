"""Importers: measurements of other tools become records."""
