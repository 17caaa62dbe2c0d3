"""Operations on tensors: one folder each, with a plain torch reference and, where it pays, a fast twin.

fused.py is Triton, for GPUs; cpu.py is loops compiled by numba. Imports torch, triton, numpy and numba only;
knows nothing of models, services or the mesh.
"""
