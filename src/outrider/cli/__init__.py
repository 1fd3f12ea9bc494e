"""The command line: one file a command. Nothing here touches tensors; whatever is slow to import is imported inside."""
