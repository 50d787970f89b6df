"""Trains a student. Runs in the build environment, where torch is: relative imports alone, nothing else of ours."""
