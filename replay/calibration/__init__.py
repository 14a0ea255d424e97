"""Fitted parameters: one kind of file, one loader."""
