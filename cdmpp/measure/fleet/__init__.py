"""Several devices at once, over a TVM RPC tracker: a queue of jobs on disk, and a lane for each server."""
