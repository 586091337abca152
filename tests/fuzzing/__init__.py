"""What ``tests/fuzz.py`` throws at the package: valid things, mutations of them, and who watches that nothing runs."""
