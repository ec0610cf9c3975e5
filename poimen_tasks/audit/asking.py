"""stub"""


class Asking:
    def __init__(self, load_settings, store):
        self._load_settings = load_settings
        self._store = store
