"""Any network as Triton kernels on a GPU, replayed as CUDA graphs where steps are small."""
