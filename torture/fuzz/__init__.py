"""Readers of what strangers write, as functions of bytes: for a fuzzer guided by coverage, and for hypothesis."""
