"""Programs to measured records: here, over RPC, or through a kit. Kits carry this file, so it imports nothing."""
