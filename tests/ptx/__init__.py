"""An emulator of the PTX that Triton makes of the kernels; docs/emulator.md says what it does and does not model."""
