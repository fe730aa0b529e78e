"""What `god-ray init` writes: `columns` looks at the data, `templates` turns what it saw into two files.

In: a path. Out: text. Must not know the runtime; nothing here is used after the files are written.
"""
