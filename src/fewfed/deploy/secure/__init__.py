"""Secure aggregation: the coordinator learns the sum of what sites upload, and no single upload.

No transport is in here: messages are bytes that `SecureServer` and `SecureSite` make and take.
"""
