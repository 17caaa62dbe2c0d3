"""Quantised weights as others ship them: one file a format, one line of registry.py each.

A format says which tensors a linear has in the file (`layout`) and puts them into one form (`build`), in which
executors find them: stored.py. What is in no format's words is refused by the name of its field or tensor.
"""
