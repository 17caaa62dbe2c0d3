"""Operations on tensors: one folder each, with a plain torch reference and, where it pays, a Triton twin.

Imports torch and triton only; knows nothing of models, services or the mesh.
"""
