"""Tests of the laws without Ray: real worker code in processes that are cheap to start and to kill."""
