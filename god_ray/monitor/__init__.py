"""What a run says about itself: the ledger of published steps, clean metrics, progress for people.

Imports nothing here, so that reading a ledger needs the standard library only.
"""
