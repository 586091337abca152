"""Two builds of this repository, asked the same questions in turns: what became faster, and by how much."""
