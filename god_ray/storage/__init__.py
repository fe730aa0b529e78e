"""Where durable files are kept: a local disk or any store that pyarrow.fs speaks to, behind one contract.

`store` is the contract and the door, `local` and `remote` fulfil it. Must not know what the files are.
Nothing is imported here, so that reading a local run needs no pyarrow.
"""
