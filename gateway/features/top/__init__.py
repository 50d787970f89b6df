"""`nearhit top`: the figures of a running gateway, drawn on a terminal."""
