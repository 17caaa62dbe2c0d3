"""Linear layers: kernels/linear/cpu.py runs them in compiled loops, reference.py says what they compute."""
