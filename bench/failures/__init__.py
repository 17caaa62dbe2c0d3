"""What callers notice when something fails: a drafter, a worker, a machine."""
