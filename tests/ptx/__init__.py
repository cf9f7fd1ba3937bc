"""An emulator of the PTX that Triton makes of the kernels; see tests/ptx/README.md."""
