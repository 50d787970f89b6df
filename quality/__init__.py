"""`make quality`: what the cache serves, how much of it is wrong, and whether promises are kept. Not a part of the
gateway: it runs it."""
