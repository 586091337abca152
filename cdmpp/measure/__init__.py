"""Programs to measured records: here, over RPC, or through an offline kit, which carries this file: no imports."""
