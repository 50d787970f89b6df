"""Trains a student in the build environment, which has torch but not `gateway`: all imports here are relative."""
