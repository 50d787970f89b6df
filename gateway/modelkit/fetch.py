class FetchFailed(Exception):
    pass


def fetch(*a, **k):
    raise FetchFailed("to come")
