"""Tables of benchmark results: written by `bench/`, read by `scm-fast bench` to compare and to draw them."""
