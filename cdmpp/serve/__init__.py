"""Serving: predictions over HTTP for those who import neither torch nor TVM, and the client that asks for them."""
