"""The work of a command is done in processes of this machine, or on a Dask cluster. No torch, no TVM."""
