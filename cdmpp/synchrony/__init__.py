"""Jobs whose workers commit to servers: when they do so, how fast that is, and what it costs."""
