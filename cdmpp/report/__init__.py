"""Writers: every result as text, files and pages."""
