"""Files of torch.save: the tensors of a state dict, read as data. Nothing in them is run."""
