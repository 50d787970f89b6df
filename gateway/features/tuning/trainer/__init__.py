"""Runs in the build environment, which has torch. It imports nothing of `gateway`."""
