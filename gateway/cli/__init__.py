"""The commands of `nearhit`, one module for each."""
