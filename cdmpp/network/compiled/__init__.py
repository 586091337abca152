"""Networks as TVM compiles and runs them."""
