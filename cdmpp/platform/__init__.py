"""The package's needs of its machine: paths, atomic files, locks, limits, child processes, compiled C++."""
