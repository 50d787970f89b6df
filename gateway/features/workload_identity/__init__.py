"""Credentials that a cloud gives to the machine or the workload: of Azure, Google and AWS.

Each type uses the official library of its cloud, which is an extra. A library blocks, so it runs in a thread.
"""
