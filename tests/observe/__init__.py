"""What the library tells an application: hooks, and later their back ends."""
