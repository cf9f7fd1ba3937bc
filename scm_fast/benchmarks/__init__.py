"""Tables of benchmark results: written by `bench/`; `scm-fast bench` finds regressions in them and draws them."""
